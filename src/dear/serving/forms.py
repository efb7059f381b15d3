"""Parse a form's parts from a body in memory: nothing is written to disk."""

from typing import Any

from python_multipart import create_form_parser
from python_multipart.exceptions import FormParserError

from dear.serving.limits import Refused

MOST_FIELDS = 8


def is_form(content_type: str) -> bool:
    return content_type.lower().startswith("multipart/form-data")


def parts(body: bytes, content_type: str) -> tuple[bytes, dict[str, str]]:
    """The file "image", and the other fields by name. Raises Refused (400)."""
    files, fields, seen = dict[str, bytes](), dict[str, str](), 0

    def on_file(file: Any) -> None:
        if files:
            raise Refused(400, "the form has more than one file: send one image per request.")
        file.file_object.seek(0)
        files[_text(file.field_name)] = file.file_object.read()

    def on_field(field: Any) -> None:
        nonlocal seen
        seen += 1  # names may repeat
        if seen > MOST_FIELDS:
            raise Refused(400, f"the form has more than {MOST_FIELDS} fields.")
        fields[_text(field.field_name)] = _text(field.value)

    try:
        kind = content_type.encode("latin-1", "replace")
        config = {"MAX_MEMORY_FILE_SIZE": len(body) + 1, "MAX_BODY_SIZE": len(body) + 1}
        parser = create_form_parser({"Content-Type": kind}, on_field, on_file, config=config)
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise Refused(400, f"the form cannot be read as multipart/form-data: {error}.") from None
    if "image" not in files:
        raise Refused(400, "the form has no file 'image': send one, as with curl -F image=@photo.jpg.")
    return files["image"], fields


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
