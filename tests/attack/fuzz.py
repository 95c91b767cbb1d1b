"""Attacks the command line with generated lines: each must be accepted, or refused in one line.

    make attack

Half of the lines are of ``fit``, half of the other commands: hostile values of their options, hostile files, run
folders with a value or a byte changed, and the variables of the environment that the program reads. Each runs for at
most a minute in a fork of this process, some in processes of their own. Prints a table of how they ended, every
traceback and every hang. The exit status is 1 if there was a traceback, a hang, or a refusal in other than one line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from attack.fuzz_commands import PROCESSES, command_lines
from attack.fuzz_fit import fit_lines
from attack.fuzz_line import FINE, attempt, stage


def main() -> int:
    """Run the attack and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=1000, help="number of lines of the commands other than fit")
    parser.add_argument("--fit", type=int, default=1000, help="number of lines of fit")
    parser.add_argument("--only", nargs="+", help="commands to attack, by default all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a file for all results, one JSON object a line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.processes) as pool:
        stage(staged := Path(folder, "staged"))  # also imports once what the forks need
        lines = [*fit_lines(options.fit, options.seed), *command_lines(options.lines, options.seed, staged), *PROCESSES]
        lines = [line for line in lines if not options.only or line.arguments[:1] in [(each,) for each in options.only]]
        results = []
        for result in pool.map(partial(attempt, staged=staged), lines):
            results.append(result)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(result) + "\n")
            if result["end"] not in FINE:
                print(f"{result['end']}: {result['line'][:900]}\n{result['said']}", flush=True)
    counts = Counter((result["command"], result["end"]) for result in results)
    ends = [*FINE, *sorted({end for _, end in counts} - set(FINE))]
    print(f"{f'seed {options.seed}':12}{'lines':>8}" + "".join(f"{end:>11}" for end in ends))
    for command in [*sorted({command for command, _ in counts}), "all"]:
        row = [sum(counts[each] for each in counts if each[1] == end and command in (each[0], "all")) for end in ends]
        print(f"{command:12}{sum(row):8}" + "".join(f"{number:11}" for number in row))
    statuses = Counter(result.get("status") for result in results)
    print("exit status: " + ", ".join(f"{status} {number} times" for status, number in statuses.most_common()))
    return int(any(result["end"] not in FINE for result in results))


if __name__ == "__main__":
    sys.exit(main())
