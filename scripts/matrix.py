"""Run a tier of the tests with the Python and the servers of another Debian, and note what came of it.

Run it with: .venv/bin/python scripts/matrix.py [--tier first|servers] [--workers N] SUITE [-- PYTEST ARGUMENTS]
SUITE is a Debian suite: trixie, sid. Its packages are unpacked below build/matrix, from the mirror that this machine
uses, and nothing is installed here. The row of what came of it goes to docs/reference/versions.md. Pip reaches the
network as it does here, the tests reach none. What is there already is kept: delete build/matrix/SUITE to begin anew.
Needs apt-get, dpkg-deb and unshare.
Exit status: that of pytest.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree  # what it reads was written by pytest a moment ago
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "versions.md"
# They need 300 MB of a browser that no suite changes.
BROWSERS = (
    "tests/dashboard/test_browser.py",
    "tests/pipeline/test_report_page.py::test_a_browser_has_nothing_to_complain_about",
    "tests/pipeline/test_report_page.py::test_nothing_sticks_out_of_the_page_on_narrow_and_on_wide_screens",
)
PACKAGES = (
    "?essential",  # no package names these as its dependencies: dash is /bin/sh
    *("python3", "python3-venv", "python3-pip-whl", "redis-server", "rabbitmq-server", "openssl", "git", "make"),
    *("postgresql", "pgbouncer"),
    *("iproute2", "mawk", "media-types", "netbase", "procps", "tzdata"),
)
LINKS = ("bin", "sbin", "lib", "lib64")
ENTER = """
set -e
mount -t proc proc "$R/proc"; mount --rbind /dev "$R/dev"; mount --rbind /sys "$R/sys"
mount -t tmpfs tmpfs "$R/tmp"; mount --bind "$T" "$R/src"
[ -z "$OFFLINE" ] || ip link set lo up
# A shell stays the first process, which its last command would replace: orphans need one that waits for them.
status=0
set -- env -i HOME=/root PATH=/opt/venv/bin:/usr/sbin:/usr/bin LANG=C.UTF-8 TERM=dumb TZ=UTC "$@"
chroot "$R" "$@" || status=$?
exit $status
"""
HEADER = """# Tested versions

`make matrix SUITE=trixie` runs the tests that need only Python with the Python of another Debian release,
`make matrix SUITE=trixie TIER=servers` those with its servers, and each writes its row here; this needs no container,
and installs nothing on the machine. *Not run* are skipped tests: most need a program that was not installed.

| Debian | tests | day | Python | RabbitMQ | Redis | passed | failed | not run |
|---|---|---|---|---|---|---|---|---|
"""


class Suite:
    """A Debian suite, unpacked.

    Args:
        name: as its mirror calls it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.place = ROOT / "build" / "matrix" / name
        self.root = self.place / "root"
        self._apt = self.place / "apt"

    def make(self) -> None:
        """Unpack it, and make its environment; what is there stays."""
        unpacked, packages = self.place / "unpacked", " ".join(PACKAGES)
        if not unpacked.exists() or unpacked.read_text() != packages:
            shutil.rmtree(self.place, ignore_errors=True)
            self._unpack()
            unpacked.write_text(packages)
        pins = ROOT / "requirements" / "dev.txt"
        made = self.place / "dev.txt"
        if not made.exists() or made.read_bytes() != pins.read_bytes():
            self._make_environment()
            shutil.copyfile(pins, made)

    def _unpack(self) -> None:
        lists, archives = self._apt / "state" / "lists", self._apt / "cache" / "archives"
        for each in (lists, archives):
            (each / "partial").mkdir(parents=True, exist_ok=True)
        (self._apt / "status").write_text("")
        sources = self._apt / "debian.sources"
        sources.write_text(f"Types: deb\nURIs: {_mirror()}\nSuites: {self.name}\nComponents: main\n")
        settings = {
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": self._apt / "none",
            "Dir::State": self._apt / "state",
            "Dir::State::Lists": lists,
            "Dir::State::status": self._apt / "status",
            "Dir::Cache": self._apt / "cache",
            "Debug::NoLocking": 1,
            "APT::Sandbox::User": "root",
        }
        apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
        print(f"matrix: fetching {self.name}", flush=True)
        subprocess.run([*apt, "update"], check=True)
        fetch = ["--yes", "--download-only", "--no-install-recommends", "install", *PACKAGES]
        subprocess.run([*apt, *fetch], check=True, stdout=subprocess.DEVNULL)
        for name in LINKS:  # all programs are below /usr
            (self.root / "usr" / name).mkdir(parents=True, exist_ok=True)
            (self.root / name).symlink_to(f"usr/{name}")
        for package in sorted(archives.glob("*.deb")):
            with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacked:
                extract = ["tar", "-x", "--keep-directory-symlink", "-C", self.root]
                subprocess.run(extract, stdin=unpacked.stdout, check=True)
        for name in ("proc", "dev", "sys", "tmp", "src", "root", "etc"):
            (self.root / name).mkdir(exist_ok=True)
        (self.root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
        (self.root / "etc" / "passwd").write_text(
            "root:x:0:0:root:/root:/bin/bash\npostgres:x:999:999::/tmp:/bin/sh\n"  # it does not run as root
        )
        (self.root / "etc" / "group").write_text("root:x:0:\npostgres:x:999:\n")
        (self.root / "usr" / "bin" / "awk").symlink_to("mawk")

    def _make_environment(self) -> None:
        print("matrix: making its environment", flush=True)
        etc = self.root / "etc"
        for name in ("resolv.conf", "hosts", "pip.conf"):
            if (Path("/etc") / name).exists():
                shutil.copyfile(Path("/etc") / name, etc / name)
        settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        known = "/etc/ssl/certs/ca-certificates.crt"  # where Debian's pip looks
        authorities = Path(os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE") or known)
        if authorities.exists():
            (etc / "ssl" / "certs").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(authorities, self.root / known[1:])
            settings["PIP_CERT"] = known
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
        plugins = sorted(path.parent.relative_to(ROOT) for path in ROOT.glob("plugins/*/pyproject.toml"))
        projects = " ".join(f"-e {plugin}" for plugin in plugins)
        pip = f"{variables} python -m pip --quiet --no-cache-dir --disable-pip-version-check install"
        steps = [
            "rm -rf /opt/venv",
            "/usr/bin/python3 -m venv /opt/venv",
            f"{pip} --require-hashes -r requirements/dev.txt",
            f"{pip} --no-deps --no-build-isolation -e . {projects}",
        ]
        if self.enter(" && ".join(steps), offline=False):
            sys.exit(f"error: {self.name} has no environment: see what pip says above")

    def enter(self, command: str, *, offline: bool) -> int:
        """Run a command in it, in the tree; gives its status."""
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        unshare += ["--map-root-user"] if os.geteuid() else []
        unshare += ["--net"] if offline else []
        words = ["bash", "-c", ENTER, "enter", "bash", "-c", f"cd /src && {command}"]
        around = {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "OFFLINE": "yes" if offline else ""}
        around |= {"R": str(self.root), "T": str(ROOT)}
        return subprocess.run([*unshare, *words], check=False, env=around).returncode

    def version(self, package: str) -> str:
        """The version of a package, as its maker counts."""
        found = sorted((self._apt / "cache" / "archives").glob(f"{package}_*.deb"))
        return found[-1].name.split("_")[1].split("%3a")[-1].split("-")[0].split("+")[0] if found else ""

    def run(self, tier: str, workers: int, more: Sequence[str]) -> int:
        """Run a tier, and write its row; gives pytest's status."""
        report = self.place / f"{tier}.xml"
        report.unlink(missing_ok=True)
        inside = f"/src/{report.relative_to(ROOT)}"
        words = ["python", "-m", "pytest", "-q", "--tier", tier, "--hypothesis-seed", "0", f"--junitxml={inside}"]
        for test in BROWSERS:
            words += ["--deselect", test]
        words += ["-p", "no:cacheprovider", "-rsfE", "--forks", str(workers), *more]
        status = self.enter(shlex.join(words), offline=True)
        if report.exists() and not more and status in (0, 1):  # all of it was run
            self._write_row(tier, report)
        return status

    def _write_row(self, tier: str, report: Path) -> None:
        counts = next(ElementTree.parse(report).iter("testsuite")).attrib  # noqa: S314  # pytest wrote it
        failed, skipped = int(counts["failures"]) + int(counts["errors"]), int(counts["skipped"])
        passed = int(counts["tests"]) - failed - skipped
        servers = [self.version("rabbitmq-server"), self.version("redis-server")]
        row = [self.name, tier, time.strftime("%Y-%m-%d"), self.version("python3"), *servers, passed, failed, skipped]
        old = PAGE.read_text("utf-8").splitlines() if PAGE.exists() else []
        head = f"| {self.name} | {tier} |"
        rows = [line for line in old if line.startswith("| ") and not line.startswith((head, "| Debian"))]
        rows.append("| " + " | ".join(map(str, row)) + " |")
        PAGE.write_text(HEADER + "\n".join(sorted(rows)) + "\n", "utf-8")
        print(f"matrix: {rows[-1]}")


def _mirror() -> str:
    """The mirror of this machine's own suite, not of its updates."""
    shown = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for line in sorted(set(shown.splitlines())):
        place, _, release = line.partition(" ")
        if "-" not in release:
            return place
    sys.exit("error: apt-get knows no mirror of Debian here; run: apt-get update")


def main() -> int:
    """Run a tier in a suite."""
    parser = argparse.ArgumentParser(description="run a tier with the Python and the servers of a Debian suite")
    parser.add_argument("suite", metavar="SUITE", help="trixie, sid")
    parser.add_argument("--tier", choices=["first", "servers"], default="first")
    parser.add_argument("--workers", type=int, default=4, help="processes for the tests (4)")
    parser.add_argument("more", nargs="*", metavar="PYTEST ARGUMENTS")
    options = parser.parse_args()
    suite = Suite(options.suite)
    suite.make()
    return suite.run(options.tier, options.workers, options.more)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
