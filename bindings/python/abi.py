"""Writes nvte/_abi.py from include/nvte.h: constants, structs, and the functions in the order of the table.

    python bindings/python/abi.py           writes it
    python bindings/python/abi.py --check   fails where it is not what the header says
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = HERE.parent.parent / "include" / "nvte.h"
TARGET = HERE / "nvte" / "_abi.py"

PLAIN = {
    "uint8_t": "c_uint8",
    "uint32_t": "c_uint32",
    "int32_t": "c_int32",
    "int64_t": "c_int64",
    "uint64_t": "c_uint64",
    "size_t": "c_size_t",
    "float": "c_float",
    "double": "c_double",
    "char": "c_char",
}


def clean(text):
    """The header without comments and without what only C++ sees."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r"#ifdef __cplusplus\n.*?#endif[^\n]*\n", "", text, flags=re.S)


def kind(declared, aliases, result=False):
    """The ctypes name of a C type. Structs and arrays cross by address."""
    words = [w for w in declared.replace("*", " * ").split() if w not in ("const", "struct")]
    if "*" in words:
        return "c_char_p" if words == ["char", "*"] and (result or "const" in declared) else "c_void_p"
    if words == ["void"]:
        return "None"
    (word,) = words
    return aliases.get(word) or PLAIN[word]


def member(text, aliases):
    """(name, ctypes expression) of a struct's field or a function's argument."""
    declared, name, count = re.fullmatch(r"(.*?)(\w+)\s*(?:\[(\w+)\])?", text.strip(), flags=re.S).groups()
    found = kind(declared, aliases)
    return name, f"{found} * {count}" if count else found


def parse(text):
    """(constants, structs, functions in the table's order) of the header."""
    text = clean(text)
    constants = {n: int(v) for n, v in re.findall(r"^#define (NVTE_\w+) \(?(-?\d+)[uUlL]*\)?$", text, flags=re.M)}
    aliases = dict.fromkeys(re.findall(r"^typedef [\w ]+\*\s*(\w+);", text, flags=re.M), "c_void_p")
    aliases.update(dict.fromkeys(re.findall(r"^typedef \w+ \(\*(\w+)\)", text, flags=re.M), "c_void_p"))
    aliases.update((n, PLAIN[k]) for k, n in re.findall(r"^typedef (\w+) (\w+);", text, flags=re.M))
    structs = {}
    for name, body in re.findall(r"^typedef struct (\w+) \{(.*?)\} \1;", text, flags=re.S | re.M):
        structs[name] = [member(f, aliases) for f in body.split(";") if f.strip()]
    table = re.search(r"^struct nvte_api_t \{(.*?)\n\};", text, flags=re.S | re.M).group(1)
    functions = {}
    for result, name, arguments in re.findall(r"([\w *]+?)\(\*(\w+)\)\((.*?)\);", table):
        parts = [] if arguments.strip() in ("", "void") else arguments.split(",")
        functions[f"nvte_{name}"] = (kind(result, aliases, result=True), [member(p, aliases) for p in parts])
    return constants, structs, functions


def wrap(head, items, tail, width=140):
    """One line where it fits, else one item a line."""
    line = head + ", ".join(items) + ("," if len(items) == 1 and tail.startswith(")") else "") + tail
    if len(line) <= width:
        return line
    indent = " " * (len(head) - len(head.lstrip()) + 4)
    return head + "\n" + "".join(f"{indent}{i},\n" for i in items) + indent[4:] + tail


def render(text):
    """The module."""
    constants, structs, functions = parse(text)
    used = sorted(
        {n for fields in structs.values() for _, k in fields for n in re.findall(r"c_\w+", k)}
        | {n for r, a in functions.values() for k in [r, *(k for _, k in a)] for n in re.findall(r"c_\w+", k)}
    )
    out = ['"""The C ABI as data. Generated from include/nvte.h by bindings/python/abi.py; do not edit."""', ""]
    out += [f"from ctypes import Structure, {', '.join(used)}", ""]
    out += [f"{name} = {value}" for name, value in constants.items()]
    for name, fields in structs.items():
        out += ["", "", f"class {name}(Structure):"]
        out.append(wrap("    _fields_ = [", [f'("{n}", {k})' for n, k in fields], "]"))
    out += ["", "", "#: Functions in the order of nvte_api_t: (result, arguments).", "FUNCTIONS = {"]
    for name, (result, arguments) in functions.items():
        out.append(wrap(f'    "{name}": ({result}, (', [k for _, k in arguments], ")),"))
    out += ["}", ""]
    return "\n".join(out)


def main():
    made = render(HEADER.read_text())
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text() != made:
            raise SystemExit(f"{TARGET} is not what {HEADER} says: run {Path(__file__).name}")
    else:
        TARGET.write_text(made)


if __name__ == "__main__":
    main()
