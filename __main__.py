"""Run the command line as `python -m spectune`."""

from spectune.cli import main

if __name__ == "__main__":
    main()
