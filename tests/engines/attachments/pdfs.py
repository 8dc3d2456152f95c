"""Small PDF files, written by hand."""

import zlib


def pdf(*pages: str, stream: bytes | None = None, trailer: str = "", **objects: str) -> bytes:
    """A PDF with one line of text on each page. `stream` is the content of all pages instead, compressed with zlib.

    `trailer` is added to the trailer, and `objects` replace the dictionaries `catalog` and `tree`.
    """
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    bodies = [
        objects.get("catalog", "<< /Type /Catalog /Pages 2 0 R >>").encode(),
        objects.get("tree", f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>").encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        bodies.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * number)
        )
        content = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET 0 0 1 rg 100 100 200 200 re f".encode("latin-1")
        head, content = (b"", content) if stream is None else (b"/Filter /FlateDecode ", stream)
        bodies.append(b"<< %b/Length %d >>\nstream\n%b\nendstream" % (head, len(content), content))
    return file_of(bodies, trailer)


def file_of(bodies: list[bytes], trailer: str = "") -> bytes:
    """A PDF of these objects, of which the first is the catalog."""
    written, places = b"%PDF-1.7\n", []
    for number, body in enumerate(bodies, start=1):
        places.append(len(written))
        written += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    count = len(bodies) + 1
    end = f"trailer\n<< /Size {count} /Root 1 0 R {trailer} >>\nstartxref\n{len(written)}\n%%EOF\n".encode()
    return written + b"xref\n0 %d\n0000000000 65535 f \n%b" % (count, table) + end


def deep(levels: int) -> bytes:
    """A PDF with one page, that many levels down in the tree."""
    bodies = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    bodies += [b"<< /Type /Pages /Kids [%d 0 R] /Count 1 >>" % (3 + level) for level in range(levels)]
    return file_of([*bodies, b"<< /Type /Page /MediaBox [0 0 612 792] >>"])


def encrypted(data: bytes, password: str) -> bytes:
    import io

    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(PdfReader(io.BytesIO(data)))
    writer.encrypt(password, algorithm="RC4-128")
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def bomb(size: int) -> bytes:
    """A PDF of one page whose content is `size` bytes, compressed by a factor of a thousand."""
    packer = zlib.compressobj(9)
    block = b"0 0 m\n" * 100_000
    # A block that knows nothing of those before is the same wherever it stands.
    first, again = (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    count, check = size // len(block), 1
    for _ in range(count):
        check = zlib.adler32(block, check)
    return pdf("", stream=first + again * (count - 1) + b"\x03\x00" + check.to_bytes(4, "big"))
