"""Stands for a Python of Spark's that was forked: passes on its arguments, its files, and how it ends.

It is run as a file, by a Python that loads next to nothing. When it is ended, so is the one that it stands for.
"""

import json
import os
import socket
import sys


def main(name: str, arguments: list[str]) -> int:
    wanted = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(f"\0{name}")
        except OSError:  # there is none any more
            os.execv(sys.executable, [sys.executable, *arguments])
        socket.send_fds(server, [b"!"], [0, 1, 2])
        server.sendall(json.dumps(wanted).encode() + b"\n")
        for number in (0, 1):
            os.close(number)
        code = server.recv(1)
    return code[0] if code else 1


if __name__ == "__main__":
    sys.exit(main(os.environ["FORKS_FOR_SPARK"], sys.argv[1:]))
