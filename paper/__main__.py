"""Make the paper: python -m paper [--records FOLDER] [--out FOLDER] [--no-pdf | --pictures]."""

import argparse
import sys
from pathlib import Path

from paper.build import build, check, generated, store
from paper.pictures import draw
from paper.records import EXPERIMENTS, HERE, Records
from paper.typeset import TypesetError, is_there
from shmsim.console import console


def main() -> None:
    """Bring what is generated up to date; then make the PDF, or what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m paper", description=__doc__)
    parser.add_argument("--records", type=Path, default=EXPERIMENTS, help="stored records")
    parser.add_argument("--out", type=Path, default=Path("build/paper"), help="where it is made")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--no-pdf", action="store_true", help="numbers and tables only")
    what.add_argument("--pictures", action="store_true", help="pictures only")
    arguments = parser.parse_args()
    records = Records(arguments.records)
    try:
        if arguments.pictures:
            for path in draw(records, arguments.out / "pictures"):
                console.print(str(path), markup=False, soft_wrap=True)
            return
        if arguments.records == EXPERIMENTS:
            store(generated(records), HERE)
        check(records)
        if arguments.no_pdf:
            return
        if not is_there():
            raise TypesetError(
                "latexmk and pdflatex are not here: on Debian and Ubuntu, apt-get install latexmk "
                "texlive-latex-recommended lmodern"
            )
        pages = build(records, arguments.out)
    except (TypesetError, ValueError) as error:
        sys.exit(str(error))
    console.print(
        f"{arguments.out / 'main.pdf'}: {pages} pages, references and appendix", soft_wrap=True
    )


if __name__ == "__main__":
    main()
