"""Writes session.py: the types of docs/session-api.md, by datamodel-code-generator."""

import pathlib
import re
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
page = (here / "../../docs/session-api.md").resolve().read_text(encoding="utf-8")
schema = re.search(r"```json\n(.*?)\n```", page, re.DOTALL)
if schema is None:
    sys.exit("docs/session-api.md has no schema")
with tempfile.TemporaryDirectory() as scratch:
    source = pathlib.Path(scratch) / "session.json"
    source.write_text(schema[1], encoding="utf-8")
    command = [
        sys.executable, "-m", "datamodel_code_generator",
        "--input", str(source), "--input-file-type", "jsonschema",
        "--output", sys.argv[1] if len(sys.argv) > 1 else str(here / "session.py"),
        "--output-model-type", "typing.TypedDict", "--target-python-version", "3.11",
        "--use-schema-description", "--enum-field-as-literal", "all", "--disable-timestamp",
        "--custom-file-header", "# Made from docs/session-api.md by generate.py; not for editing.",
        "--formatters", "builtin", "--no-use-closed-typed-dict",
    ]
    sys.exit(subprocess.run(command, check=False).returncode)
