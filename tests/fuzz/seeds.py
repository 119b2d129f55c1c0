"""Writes small valid inputs for each fuzzer, as its first corpus. usage: seeds.py FOLDER"""
import base64
import io
import pathlib
import struct
import sys
import tarfile
import zipfile
import zlib

POLYNOMIAL = 0x82F63B78


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def tfrecord(payload):
    def masked(data):
        crc = crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def field(number, value):
    """Returns a field of protocol buffers: a message or bytes, shorter than 128."""
    return bytes([number << 3 | 2, len(value)]) + value


def example(**features):
    """Returns a tf.train.Example of lists, each with its number in a Feature."""
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, field(kind, values)))
                             for name, (kind, values) in features.items()))


def npy(header, numbers, version=1):
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + numbers


def safetensors(header, values):
    return struct.pack("<Q", len(header)) + header.encode() + values


def zipped(method, **members):
    """Returns a ZIP archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def tarred(kind, **members):
    """Returns a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name.replace("_", "."))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    text = out.getvalue().rstrip(b"\0")
    return text + bytes(-len(text) % 512 + 1024)


def line(text):
    return f"{crc32c(text.encode()):08x} {text}\n"


def tables(form, records):
    """Returns the bytes after the first page of a file of records, in the order of fuzz/records.cpp: form, payload,
    tables."""
    payload, ends = b"", []
    for record in records:
        payload += bytes(-len(payload) % 8) + record
        ends.append(len(payload))
    body = payload + bytes(-len(payload) % 64)
    body += struct.pack(f"<{len(records)}f", *range(len(records)))
    for index, record in enumerate(records):
        body += struct.pack("<I", crc32c(record + struct.pack("<f", index)))
    body += bytes(-len(body) % 8)
    if form == 1:
        body += struct.pack(f"<{len(ends)}Q", *ends)
    return bytes([form]) + body + struct.pack("<QQQQQQ", len(records), 4096, len(payload), 0, 0, 0) + bytes(16)


def checkpoint(parts):
    """Returns parts in the form that fuzz/checkpoint.hpp seals."""
    return b"".join(struct.pack("<Q", len(name)) + name + struct.pack("<Q", len(payload)) + payload for name, payload in parts)


def frame(kind, payload=b"", number=0, announced=0):
    """Returns a frame of the tcp transport: the fuzzer adds its checksum."""
    head = struct.pack("<HBBIIIQQBB6xQQiBBBB", 0x6D7E, 4, kind, 3, 0, 0, 1, announced or len(payload), 0, 0, 1, number, 0, 0, 0, 0, 0)
    return head + payload


def ps_frame(*messages):
    """Returns a frame of the parameter server: sender, its map and clock, then messages with kind, range, number,
    payload."""
    frame = struct.pack("<IIIIQQ", 3, 1, 0, 0x7073726E, 7, 5)
    for kind, place, number, payload in messages:
        frame += struct.pack("<BBHIIIQQQfI", kind, 0, 0, place, 0, 1, number, 0, 0, 1.0, len(payload))
        frame += payload + bytes(-len(payload) % 16)
    return frame


# 16 x 16 grey, 17 x 16 in colour and progressive, 16 x 9 CMYK.
JPEGS = [base64.b64decode(text) for text in (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8yb"
    "qmx5moq6T/wAALCAAQABABAREA/8QAFQABAQAAAAAAAAAAAAAAAAAABAX/xAAmEAAAAgYLAAAAAAAAAAAAAAAAEQIEEiJDYgMFBhMUMkFScaHh"
    "/9oACAEBAAA/AGUCxmd7BbMqrOJf26ciIivMQzOYJSrK+gkU3g//2Q==",
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8yb"
    "qmx5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wgARCAAQ"
    "ABEDASIAAhEBAxEB/8QAFwAAAwEAAAAAAAAAAAAAAAAAAAEDBP/EABUBAQEAAAAAAAAAAAAAAAAAAAID/9oADAMBAAIQAxAAAAFwokmaCUf/xA"
    "AaEAACAgMAAAAAAAAAAAAAAAAAAhESAxMy/9oACAEBAAEFAuBWLmRrk7CT/8QAGBEAAgMAAAAAAAAAAAAAAAAAABMhMlH/2gAIAQMBAT8BrOjT"
    "/8QAGREAAQUAAAAAAAAAAAAAAAAAAAECEkFi/9oACAECAQE/AVdZHJ//xAAaEAACAgMAAAAAAAAAAAAAAAAAEAERMUFR/9oACAEBAAY/AlgjRy"
    "l//8QAHRAAAQIHAAAAAAAAAAAAAAAAABEhARAxQVGR8P/aAAgBAQABPyHZSux0pamEMUh//9oADAMBAAIAAwAAABD4D//EABcRAAMBAAAAAAAA"
    "AAAAAAAAAAABEXH/2gAIAQMBAT8QjpFjCD//xAAZEQADAAMAAAAAAAAAAAAAAAAAARFRwfH/2gAIAQIBAT8QS5Fzono//8QAHxAAAQMDBQAAAA"
    "AAAAAAAAAAEQABQRBx8SGBodHw/9oACAEBAAE/EHb3YDKNtzQXAySR0tZyCThWL//Z",
    "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwAbEhQXFBEbFxYXHhwbIChCKyglJShROj0wQmBVZWRfVV1baniZgWpxkHNbXYW1hpCeo6utq2eAvMm6ps"
    "eZqKuk/8AAFAgACQAQBEMRAE0RAFkRAEsRAP/EABgAAAMBAQAAAAAAAAAAAAAAAAMEBQIG/8QALhAAAAMDCQcFAAAAAAAAAAAAABESAwQFExQj"
    "QUJDUYHBBiEiYWKC8QIVRKLh/9oADgRDAE0AWQBLAAA/AI7q/TZVGpRWiDjJ79wPgk0czM/Ans4ZOTpkp6T1E5vD0ppfr+h9i+zI6Na+oiLyAx"
    "JlN5PiUo6iwFDaBrIyG5RqrLAOQX0zeW3qUnliD7RfH7tBsX2FoIM6w1Hbju0HPxS6z0EiL3WegE6W8h//2Q==")]


def turned(jpeg, number):
    """Returns a JPEG with EXIF data of an orientation."""
    exif = b"Exif\0\0MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, number, 0, 0)
    return jpeg[:2] + struct.pack(">HH", 0xFFE1, len(exif) + 2) + exif + jpeg[2:]


def png(kind, depth, interlaced, width, rows, palette=b""):
    """Returns a PNG."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), depth, kind, 0, 0, interlaced)), (b"PLTE", palette), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks if data or name != b"PLTE")


PNGS = [png(2, 8, 0, 2, [b"\1abcdef", b"\4ghijkl"]), png(3, 2, 0, 5, [b"\0\x1b\x40"], b"abcdefghijkl"), png(0, 1, 0, 9, [b"\2\xaa\x80"]),
        png(6, 16, 1, 1, [b"\0abcdefgh"]), png(4, 8, 0, 2, [b"\3abcd"])]
heading = line("muster-records 1")
INFER = b'{"id":"a","inputs":[{"name":"x","datatype":"%s","shape":[%s],%s}],"outputs":[{"name":"y"}]}'
SEEDS = {
    # Codec, number of values (two bytes), voters, and the bytes to decode.
    "codec": [bytes([1, 3, 0, 0]) + bytes(8), bytes([3, 5, 0, 0]) + struct.pack("<f8b", 2.5, 1, -127, 127, 0, 3, 0, 0, 0),
              bytes([4, 33, 0, 0]) + struct.pack("<fII", 0.5, 0x80000001, 1),
              bytes([4, 4, 0, 1]) + struct.pack("<fIfI", 0.5, 3, 1.5, 9),
              bytes([5, 20, 0, 0]) + struct.pack("<IIff", 0, 19, 1.0, -2.0), bytes([6, 9, 0, 0]) + struct.pack("<f", 1.0)],
    "checkpoint": [checkpoint([(b"parameters", bytes(range(200))), (b"diary", b"")]), checkpoint([])],
    "libsvm": [b"+1 1:1 3:0.5 # note\n-1 2:-1.25e-3\n\n0 1:1\r\n", b"1 1:0.12345678901234567 2:1e38 3:-1e-46\n",
               b"3 qid:7 1:2\n", b"1 4294967295:1\n1 10:1\n"],
    "csv": [b"a,b,c\n1,2,3\n4.5,-6e7,8\n", b'"x, y","z ""w"""\n"1", 2\n NA ,""\n', b"\xef\xbb\xbfp;q\n1;2\n", b"1 2\n3 4\n"],
    "jsonl": [b'{"a":1,"b":[1,-2.5e-3],"z":"\\u00e4"}\n{"b":[true,null],"z":{"c":[]}}\r\n\n{"a":NaN}', b'{"a":[[1],[2]]}\n{"a":[3,4]}\n'],
    "idx": [b"\0\0\x08\x02\0\0\0\x02\0\0\0\x03abcdef", b"\0\0\x0d\x01\0\0\0\x01abcd"],
    "npy": [npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }\n", b"12345678"),
            npy("{'descr': '|u1', 'fortran_order': True, 'shape': (3,)}", b"123", 3)],
    "npz": [zipped(zipfile.ZIP_STORED, a="first", b="second"), zipped(zipfile.ZIP_DEFLATED, a="a" * 99), zipped(zipfile.ZIP_STORED)],
    "tar": [tarred(tarfile.PAX_FORMAT, a_x=b"1", a_cls=b"2", b_x=b""), tarred(tarfile.PAX_FORMAT, **{"n" * 120 + "_x": b"1"}),
            tarred(tarfile.GNU_FORMAT, **{"n" * 120 + "_x": b"1"})],
    "safetensors": [safetensors('{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},'
                                '"b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}}', bytes(10)), safetensors("{}  ", b"")],
    "frame": [frame(1, bytes(100)), frame(2, announced=1 << 20), frame(3, number=5), frame(16), frame(17, bytes(64))],
    "ps": [ps_frame((1, 0, 1, bytes(8)), (3, 0, 5, b""), (4, 2, 9, b"")),
           struct.pack("<QQIQIIIBQQQIIQI", 0x6D75737465720301, 4, 1, 1, 2, 1, 1, 0, 0, 1, 3, 2**32 - 1, 2**32 - 1, 1, 2)],
    "example": [
        example(a=(2, field(1, struct.pack("<2f", 1, 2))), b=(3, field(1, b"\1\2\xff\1")), d=(3, b"\x08\5"),
                e=(1, field(1, bytes(8))), l=(3, field(1, b"\3"))),
        example(a=(1, field(1, b"bytes")), b=(2, field(1, bytes(4)))), example(c=(1, field(1, b""))),
        example(d=(3, field(1, b"\1"))) + field(2, field(1, field(1, b"c") + field(
            2, field(1, field(1, field(1, b"xy"))) + field(1, field(1, field(1, b"zw"))))))],
    "tfrecord": [tfrecord(b"") + tfrecord(b"abc") + tfrecord(bytes(300))],
    "manifest": [(heading + line("file 1 2 3 1") + line("other 4 5 6 0")).encode(), heading.encode(),
                 (heading + line("file 1 2 3 0") + line(".statistics {}") + line(".other note")).encode(),
                 b'{"records":2,"left_out":1,"label":[2,0.5,0.5,0.0,1.0],"columns":[[2,3.25,0.125,3.0,3.5]],"histogram":[[0.0,1],[1.0,1]]}'],
    "store": [bytes(8)],
    "serve": [b"\0\0\0" + INFER % (b"FP32", b"1,2,2", b'"data":[1,2.5,-3e2,4]'), b"\1\0\0" + INFER % (b"BYTES", b"2", b'"data":["abc","\\n"]'),
              b"\2\0\0" + INFER % (b"UINT8", b"1,3", b'"data":[[1,2,255]]'), b"\3\0\0" + INFER % (b"BOOL", b"1", b'"data":[true]'),
              *(bytes([8, len(json), 0]) + json + bytes(16) for json in [INFER % (b"FP32", b"1,2,2", b'"parameters":{"binary_data_size":16}')]),
              *(bytes([9, len(json), 0]) + json + bytes(8) for json in [INFER % (b"BYTES", b"2", b'"parameters":{"binary_data_size":8}')]),
              b'\4\0\0{"instances":[[[1,2],[3,4]]]}', b'\5\0\0{"instances":[{"b64":"YWJj"},{"b64":"YQ=="}]}', b'\6\0\0{"instances":[[1,2,3]]}'],
    "jpeg": [*JPEGS, *(turned(JPEGS[0], number) for number in (3, 6)), *PNGS],
    "records": [tables(0, [b"abc", b"def"]), tables(1, [b"", b"12345678", b"1234567812345678"])],
}

if __name__ == "__main__":
    for name, inputs in SEEDS.items():
        folder = pathlib.Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(inputs):
            (folder / str(number)).write_bytes(content)
