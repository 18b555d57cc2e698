"""For all tests here."""

import ctrl_c  # noqa: F401  # by being imported
