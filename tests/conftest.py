"""For all tests here."""

import ctrl_c  # noqa: F401  # by being imported
import patient_examples  # noqa: F401  # likewise
