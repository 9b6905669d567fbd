"""``python -m cometmq``, and the console script: the command line.

Imports next to nothing before :func:`main`, so that Ctrl-C while the command's modules load ends it without a
traceback.
"""

import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        from cometmq.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
