"""Compare the pinned packages with the database of known vulnerabilities (`make audit`).

pip-audit ends with success for packages that it could not look up. Here only a complete audit
without findings is a success.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main(program: str, requirements: str) -> int:
    command = [program, "--requirement", requirements, "--no-deps", "--disable-pip"]
    options = ["--progress-spinner", "off", "--timeout", "15", "--format", "json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        problem = " ".join(done.stderr.split()[-40:])
        print(f"nothing was audited: pip-audit failed ({problem})", file=sys.stderr)
        return 2
    return summarise(packages)


def summarise(packages: list[dict[str, object]]) -> int:
    """Print the findings; return 1 if there are some, 2 if packages could not be looked up."""
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    findings = [
        f"{package['name']} {package['version']}: {finding['id']}, fixed in "
        f"{', '.join(finding['fix_versions']) or 'no version yet'}"
        for package in packages
        for finding in package.get("vulns", [])  # type: ignore[attr-defined]
    ]
    print("\n".join([*findings, f"{len(packages) - len(skipped)} packages audited"]))
    if skipped:
        print(
            f"{len(skipped)} packages could not be looked up, such as {skipped[0]}: the advisory "
            "database (pypi.org) cannot be reached from here, or does not have them; they were "
            "NOT audited",
            file=sys.stderr,
        )
    return 1 if findings else 2 if skipped else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], str(Path(sys.argv[2]))))
