"""../shared/oracle/fuzz_queue.py, but it never copies a key onto itself: every server answers that with an error, whatever
the key holds, and the model does not. SLUICE_ORACLE is the folder of both; the arguments are those of fuzz_queue.py."""
import os, sys

sys.path.insert(0, os.environ["SLUICE_ORACLE"])
import fuzz_queue


class Round(fuzz_queue.Round):
    def command(self):
        words = super().command()
        while words[0] == "COPY" and words[1] == words[2]:
            words = super().command()
        return words


fuzz_queue.Round = Round
fuzz_queue.main()
