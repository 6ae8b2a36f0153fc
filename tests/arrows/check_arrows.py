#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks which folder includes and links which:

    core <- {formats, kernels, collectives} <- plugin <- {tools, megatron_bridge}
    in plugin: targets <- {interchange, receive} <- checkpoint <- publish <- device <- engines <- job
    <- {agent, c_abi}

    check_arrows.py ROOT               prints a line per violation; exit status 1 if there is one
    check_arrows.py --self-test ROOT   adds violations to copies of ROOT, and expects to find each

Reads the #include lines of every folder and of every room in plugin/, and the folders named in their
CMakeLists.txt. A file in plugin/ itself, or in a room that is not listed here, is a violation, too.
"""
import argparse
import pathlib
import re
import shutil
import sys
import tempfile

MAY_SEE = {
    "core": set(),
    "formats": {"core"},
    "kernels": {"core"},
    "collectives": {"core"},
    "plugin": {"core", "formats", "kernels", "collectives"},
    "tools": {"core", "formats", "kernels", "collectives", "plugin"},
    "megatron_bridge": {"core", "formats", "kernels", "collectives", "plugin"},
}
_BELOW_JOB = {"observe", "targets", "interchange", "checkpoint", "publish", "receive", "device", "engines"}
# The rooms of plugin/, and the rooms that each may include.
ROOM_MAY_SEE = {
    "observe": set(),
    "targets": set(),
    "interchange": {"targets"},
    "checkpoint": {"targets", "interchange"},
    "publish": {"targets", "interchange", "checkpoint", "receive"},
    "receive": {"targets"},
    "device": {"targets", "interchange", "publish"},
    "engines": {"targets", "checkpoint"},
    "job": _BELOW_JOB,
    "agent": _BELOW_JOB | {"job"},
    "c_abi": _BELOW_JOB | {"job"},
}
SUFFIXES = {".h", ".cpp", ".cuh", ".cu", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
TARGET = re.compile(rf"\bdriftless(?:_|::)({'|'.join(MAY_SEE)})\b")
ROOM_CALL = re.compile(r"\bdriftless_room\s*\(([^)]*)\)")
ROOM_KEYWORDS = {"SOURCES", "SEES", "LINKS", "PRIVATE_LINKS", "BUILD_LINKS", "NOT_INSTALLED"}


def include_offence(room, path, included):
    """`path`: of the including file, relative to the root."""
    parts = included.split("/")
    if ".." in parts:
        return f"includes \"{included}\": a path through '..' goes around the include path"
    if parts[0] in ("tests", "support"):
        return f'includes "{included}": no room sees the tests'
    if parts[0] in MAY_SEE and parts[0] != room and parts[0] not in MAY_SEE[room]:
        return f'includes "{included}": {room} may not see {parts[0]}'
    if room == "plugin" and parts[0] == "plugin":
        mine, other = path.parts[1], parts[1]
        if mine in ROOM_MAY_SEE and other != mine and other not in ROOM_MAY_SEE[mine]:
            return f'includes "{included}": plugin/{mine} may not see plugin/{other}'
    return None


def place_offence(room, path):
    if room != "plugin" or path.parts[1] in ROOM_MAY_SEE:
        return None
    return f"is in no room of plugin/: {', '.join(ROOM_MAY_SEE)}"


def check_sources(root, room):
    for path in sorted((root / room).rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        relative = path.relative_to(root)
        misplaced = place_offence(room, relative)
        if misplaced:
            yield f"{relative}: {misplaced}"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            offence = match and include_offence(room, relative, match.group(1))
            if offence:
                yield f"{relative}:{number}: {offence}"


def rooms_in_cmake(text):
    """Rooms that a CMakeLists.txt names: after SEES, and as link targets."""
    text = re.sub(r"#.*", "", text)
    named = set(TARGET.findall(text))
    for call in ROOM_CALL.findall(text):
        keyword = None
        for word in call.split():
            if word in ROOM_KEYWORDS:
                keyword = word
            elif keyword == "SEES":
                named.add(word)
    return named


def check_cmake(root, room):
    for path in sorted((root / room).rglob("CMakeLists.txt")):
        for other in sorted(rooms_in_cmake(path.read_text(encoding="utf-8"))):
            if other != room and other not in MAY_SEE[room]:
                yield f"{path.relative_to(root)}: links {other}: {room} may not see it"


def check(root):
    offences = []
    for room in MAY_SEE:
        if (root / room).is_dir():
            offences += check_sources(root, room)
            offences += check_cmake(root, room)
    return offences


PLANTED = [
    ("formats/planted.cpp", '#include "kernels/host_kernels.h"\n'),
    ("kernels/cpu/planted.cpp", '#  include "formats/encoding.h"\n'),
    ("core/planted.h", "#include <tools/synth.h>\n"),
    ("collectives/planted.h", '#include "formats/frame.h"\n'),
    ("plugin/job/planted.cpp", '#include "megatron_bridge/bridge.h"\n'),
    ("plugin/job/planted.cpp", '#include "tools/synth.h"\n'),
    ("plugin/planted.cpp", "int a;\n"),
    ("plugin/attic/planted.h", "int a;\n"),
    ("plugin/targets/planted.h", '#include "plugin/receive/receiver.h"\n'),
    ("plugin/receive/planted.cpp", '#include "plugin/publish/publisher.h"\n'),
    ("plugin/interchange/planted.h", '#include "plugin/checkpoint/verify.h"\n'),
    ("plugin/engines/planted.cpp", '#include "plugin/job/config.h"\n'),
    ("plugin/job/on_demand/planted.h", '#include "plugin/agent/delivery.h"\n'),
    ("formats/planted.h", '#include "../kernels/host_kernels.h"\n'),
    ("core/planted.cpp", '#include "support/temp_dir.h"\n'),
    ("formats/CMakeLists.txt", "driftless_room(formats\n  SOURCES a.cpp\n  SEES core kernels)\n"),
    ("kernels/CMakeLists.txt", "target_link_libraries(driftless_kernels driftless_plugin)\n"),
    ("core/CMakeLists.txt", "driftless_room(core SOURCES a.cpp LINKS driftless::formats)\n"),
]


def copy_rooms(root, to):
    for room in MAY_SEE:
        if (root / room).is_dir():
            shutil.copytree(root / room, to / room)


def self_test(root):
    failures = []
    for name, text in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder)
            copy_rooms(root, copy)
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("a", encoding="utf-8") as file:
                file.write(text)
            offences = check(copy)
            if len(offences) != 1 or not offences[0].startswith(name):
                failures.append(f"{name}: planted {text.strip()!r}, found {offences}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("root", type=pathlib.Path)
    arguments = parser.parse_args()
    problems = (self_test if arguments.self_test else check)(arguments.root.resolve())
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
