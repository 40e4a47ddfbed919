"""Writes CSVs of random devices by Python's csv module, in the dialects of spreadsheets and databases, for
TestDialects: dialects.py SEED COUNT DIRECTORY. Beside N.csv is N.json, the devices."""

import csv
import io
import json
import pathlib
import random
import sys

seed, count, directory = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
r = random.Random(seed)
HASH = "$2b$12$" + "a" * 53


def device(n):
    d = {"id": r.choice("abc;|'=") + str(n), "permissions": [], "labels": {}, "not_after": "", "secret": "", "hash": ""}
    if r.random() < 0.5:
        d["hash"] = HASH
    else:
        d["secret"] = "s" + "".join(r.choice("ab,;|\"'é =#$%") for _ in range(r.randrange(9))) + "s"
    d["permissions"] = sorted(r.sample(["a.b", "c:d", "e-f"], r.randrange(4)))
    d["labels"] = {name: "x" * r.randrange(3) for name in r.sample(["fleet", "site"], r.randrange(3))}
    d["not_after"] = r.choice(
        ["", "2090-01-31", "2090-01-31T00:00:00Z", "2090-01-31 01:00:00+01", "2090-01-31 00:00:00+00:00"]
    )
    return d


def write(n):
    devices = [device(i) for i in range(r.randrange(1, 6))]
    delimiter = r.choice(",;\t|")
    columns = ["id", "secret", "hash", "permissions", "labels", "not_after"]
    r.shuffle(columns)
    empty = r.choice([0, 0, 2])
    spell = r.choice(
        [str, str.upper, str.title, lambda s: s.replace("_", " ").capitalize(), lambda s: s.replace("_", "-")]
    )
    text = io.StringIO()
    out = csv.writer(
        text, delimiter=delimiter, quoting=r.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
        lineterminator=r.choice(["\n", "\r\n"]),
    )
    if r.random() < 0.3:
        text.write(f"sep={delimiter}\r\n")
    out.writerow([spell(c) for c in columns] + [""] * r.choice([0, empty]))
    for d in devices:
        values = dict(d, permissions=r.choice([",", ", "]).join(d["permissions"]),
                      labels=",".join(f"{k}={v}" for k, v in d["labels"].items()))
        out.writerow([values[c] for c in columns] + [""] * empty)
        if r.random() < 0.2:
            out.writerow([""] * (6 + empty))
    encoded = {
        "utf-8": lambda s: s.encode(), "utf-8-sig": lambda s: s.encode("utf-8-sig"),
        "utf-16-le": lambda s: b"\xff\xfe" + s.encode("utf-16-le"),
        "utf-16-be": lambda s: b"\xfe\xff" + s.encode("utf-16-be"),
    }[r.choice(["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"])](text.getvalue())
    (directory / f"{n}.csv").write_bytes(encoded)
    (directory / f"{n}.json").write_text(json.dumps(devices))


for n in range(count):
    write(n)
