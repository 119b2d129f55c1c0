"""Tests the key of a result: it has everything that can change the result, or the step names the files that it does not
compare."""
import json
import os
import shutil
import subprocess
import unittest
from unittest import mock

import bench
from flow import Case
from muster_bench.files import Digests, FolderLock, digest_of, files_under, signature
from muster_bench.errors import Busy
from muster_bench import seen
from muster_flow import steps, workflow
from muster_flow.store import Store


class Keys(Case):
    def setUp(self):
        super().setUp()
        self.write("data/x.csv", "1,2\n")
        self.write("other/x.csv", "9,9\n")

    def key(self, step, places=None, flow=None):
        flow = flow or workflow.read_file(self.workflow(f"  a:\n    {step}", f"places: {{data: '{self.folder}/data'}}"), {}, places or {})
        return digest_of(json.loads(json.dumps(Store(self.folder / "out", flow).parts(flow.steps["a"]))))

    def assert_seen(self, step, change, places=None):
        """Checks that `change()` changes the key, and that the key stays the same without a change."""
        before = self.key(step)
        self.assertEqual(before, self.key(step), step)
        change()
        self.assertNotEqual(before, self.key(step, places), step)

    def test_a_source_names_its_file_by_codes(self):
        path = self.write("data/my x.csv", "1,2\n")
        self.write("data/my", "")
        for word in (f"csv:{self.folder}/data/my%20x.csv?label=0", f"--data=npy:/x,{self.folder}/data/my%20x.csv"):
            self.assertIn(str(path), [found for found, _ in seen.paths_in(word, [])], word)
        self.assertIn(str(path.parent / "my"), [found for found, _ in seen.paths_in(f"{self.folder}/data/my%21", [])])

    def test_a_file_that_a_word_names(self):
        for number, command in enumerate((
                "command: 'python3 -c pass {data}/x.csv'", "command: 'python3 -c pass --data={data}/x.csv'", "command: 'prog csv:{data}/x.csv?label=0&header=0'",
                "command: 'prog npy:{data}/y.npy,{data}/x.csv'", "command: 'prog -I{data}/x.csv'", "command: ['sh', '-c', 'cat \"{data}/x.csv\" | wc']",
                "command: ['sh', '-c', 'wc < {data}/x.csv > {data}/made']", "command: 'prog --data {data}'", "command: 'prog {data}/*.csv'",
                f"command: 'prog @{self.folder}/data/x.csv'", "command: prog\n    environment: {{DATA: '{data}/x.csv'}}",
                "command: prog\n    environment: {{DATA_PATH: '{data}'}}")):
            command = command.replace("{{", "{").replace("}}", "}")
            with self.subTest(command):
                self.assert_seen(command, lambda: self.write("data/x.csv", f"{number}\n"))
                if "{data}" in command:
                    self.assert_seen(command, lambda: None, {"data": str(self.folder / "other")})

    def test_a_file_of_a_name_with_blanks_and_signs(self):
        self.write("data/with blank, year=1/x", "1")
        self.assert_seen("command: ['prog', '--data={data}/with blank, year=1/x']", lambda: self.write("data/with blank, year=1/x", "2"))

    def test_a_file_that_comes(self):
        self.assert_seen("command: 'prog --data={data}/later'", lambda: self.write("data/later", ""))

    def test_the_same_size_and_time(self):
        """Checks a change that keeps size and time, as with `touch -r` and `cp -p`."""
        time = os.stat(self.folder / "data" / "x.csv").st_mtime_ns

        def change():
            self.write("data/x.csv", "2,1\n")
            os.utime(self.folder / "data" / "x.csv", ns=(time, time))
        self.assert_seen("command: 'prog --data={data}/x.csv'", change)
        digests, path = Digests(), self.write("file", "1")
        with mock.patch("muster_bench.files.TICK", -1):   # simulates that a tick has passed
            before = digests.of_path(path)
            time = os.stat(path).st_mtime_ns
            path.write_text("2")
            os.utime(path, ns=(time, time))
            self.assertNotEqual(before, digests.of_path(path))

    def test_a_place_that_moves_with_its_content(self):
        shutil.copytree(self.folder / "data", self.folder / "copy")
        for command in ("command: 'prog --data={data}/x.csv'", "command: 'prog --data {data}'", "command: 'prog {data}/x.csv'"):
            self.assertEqual(self.key(command), self.key(command, {"data": str(self.folder / "copy")}), command)

    def test_what_a_shell_writes(self):
        """Checks that a file that is only written is no input."""
        for command in ("echo x >> {here}/log", "echo x >{here}/log", "echo x 2> '{here}/log'", "echo x &> {here}/log"):
            before = self.key(f"command: [sh, -c, \"{command}\"]")
            self.write("log", command)
            self.assertEqual(before, self.key(f"command: [sh, -c, \"{command}\"]"), command)

    def test_what_no_word_means(self):
        for command in ("command: 'prog http://127.0.0.1:80/a https://server/a s3://bucket/a'", "command: 'prog a/b ./a ../b /dev/null /proc/self/stat'"):
            flow = workflow.read_file(self.workflow(f"  a:\n    {command}"))
            self.assertEqual(Store(self.folder / "out", flow).parts(flow.steps["a"])["files"], {}, command)
        flow = workflow.read_file(self.workflow("  a:\n    command: 'prog {out}/x {made}'\n    outputs: {made: made}"))
        self.assertEqual(Store(self.folder / "out", flow).parts(flow.steps["a"])["files"], {})

    def test_links(self):
        self.write("mnt/sub/img.bin", "1")
        self.write("in/labels", "l")
        (self.folder / "in" / "train").symlink_to(self.folder / "mnt")
        (self.folder / "mnt" / "up").symlink_to(self.folder / "in")     # a circle
        step = "command: 'prog {d}'\n    inputs: {d: in}"
        self.assert_seen(step, lambda: self.write("mnt/sub/img.bin", "2"))
        self.assert_seen(step, lambda: self.write("mnt/sub/more", ""))
        before = signature(self.folder / "in")
        self.write("mnt/sub/img.bin", "3")
        self.assertNotEqual(before, signature(self.folder / "in"))
        self.assert_seen(step, lambda: (self.folder / "in" / "broken").symlink_to("nowhere"))
        self.assertEqual(len(list(files_under(self.folder / "in"))), 4)
        (self.folder / "one.csv").symlink_to(self.folder / "data" / "x.csv")
        self.assert_seen("command: 'prog --data={here}/one.csv'", lambda: self.write("data/x.csv", "behind a link"))

    def test_every_field_of_a_launcher(self):
        for kind, fields in (("hosts", ("bandwidth", "latency", "loss", "per-host", "options")), ("simgrid", ("network", "bandwidth", "latency")), ("mpirun", ("options",))):
            for field in fields:
                keys = {self.key("command: prog\n    launcher: " + json.dumps({"kind": kind, "bandwidth": "1", "latency": "1", field: value})) for value in "12"}
                self.assertEqual(len(keys), 2, (kind, field))
        self.assert_seen("command: prog\n    launcher: {kind: mpirun, options: '--hostfile {data}/x.csv'}", lambda: self.write("data/x.csv", "hosts"))

    def test_other_fields_that_change_a_result(self):
        for one, other in (("ranks: 1", "ranks: 2"), ("training: {patience: 1}", "training: {patience: 2}"), ("training: {chance: 0.1}\n    deadline: 5", "training: {chance: 0.1}\n    deadline: 6"),
                           ("resources: {cpus-per-rank: 1}", "resources: {cpus-per-rank: 2}")):
            self.assertNotEqual(self.key(f"command: prog\n    {one}"), self.key(f"command: prog\n    {other}"), one)

    def test_modules(self):
        self.write("train.py", "import lib\nfrom package import part")
        self.write("lib.py", "import far.away\n")
        self.write("package/__init__.py", "")
        self.write("package/part.py", "from . import near\nfrom .near import x")
        self.write("package/near.py", "x = 1")
        self.write("far/away.py", "")
        programs = ("command: 'python3 {here}/train.py'", "command: [sh, -c, 'cd / && python3 {here}/train.py']", f"command: 'python3 -m train'\n    environment: {{PYTHONPATH: '{self.folder}'}}",
                    f"command: ['python3', '-c', 'import train']\n    environment: {{PYTHONPATH: '/nowhere:{self.folder}'}}",
                    f"command: ['sh', '-c', 'python3 -u -m package.part']\n    environment: {{PYTHONPATH: '{self.folder}'}}")
        for place, program in enumerate(programs):
            for module in ("package/near.py", "package/__init__.py") + (("lib.py", "far/away.py", "train.py") if place < 4 else ()):
                with self.subTest(program, module=module):
                    text = (self.folder / module).read_text()
                    self.assert_seen(program, lambda: self.write(module, f"{text}\n# {place}"))
        with mock.patch.dict(os.environ, PYTHONPATH=str(self.folder)):
            self.assert_seen("command: 'python3 -m train'", lambda: self.write("lib.py", "# other"))
        self.write("broken.py", "import lib\nthis is no Python")
        self.key("command: 'python3 {here}/broken.py'")

    def test_a_program_in_a_shell_s_command(self):
        program = self.write("bin/prog", "#!/bin/sh\n")
        program.chmod(0o755)
        with mock.patch.dict(os.environ, PATH=f"{self.folder}/bin:{os.environ['PATH']}"):
            self.assert_seen("command: [sh, -c, 'cd / && prog a']", lambda: program.write_text("#!/bin/sh\ntrue\n"))
            self.assert_seen("command: 'env A=1 prog a'", lambda: program.write_text("#!/bin/sh\nfalse\n"))
        with mock.patch.dict(os.environ, PATH=f"{os.environ['PATH']}"):
            before = self.key("command: [sh, -c, 'cat x']")
        with mock.patch.dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}"):
            self.assertEqual(before, self.key("command: [sh, -c, 'cat x']"))

    def test_variables_of_the_caller(self):
        for name, command in (("MUSTER_SEED", "prog"), ("OMP_NUM_THREADS", "prog"), ("LD_PRELOAD_OF_A_TEST", "prog"), ("MY_OWN", "['sh', '-c', 'echo $MY_OWN']")):
            with mock.patch.dict(os.environ, {name: "1"}):
                before = self.key(f"command: {command}")
            with mock.patch.dict(os.environ, {name: "2"}):
                self.assertNotEqual(before, self.key(f"command: {command}"), name)
                own = f"command: {command}\n    environment: {{{name}: '3'}}"
                before = self.key(own)
            self.assertEqual(before, self.key(own), name)   # the program of the step counts
        with mock.patch.dict(os.environ, {"MUSTER_TOKEN": "secret", "MUSTER_SEED": "readable", "UNRELATED": "1"}):
            flow = workflow.read_file(self.workflow("  a: {command: prog}"))
            text = json.dumps(flow.to_json())
            self.assertNotIn("secret", text)
            self.assertNotIn("readable", text)
            before = self.key("", flow=flow)
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "7"}):   # a variable that Snakemake sets for a step
            self.assertEqual(before, self.key("", flow=steps.from_json(text)))


@unittest.skipIf(shutil.which("snakemake") is None, "SKIPPED: snakemake is not installed")
class Runs(Case):
    def run_flow(self, *words, **more):
        return self.bench("run", self.folder / "workflow.yaml", "--out", "out", *words, timeout=300, **more)

    def count(self):
        return len((self.folder / "log").read_text().splitlines())

    def test_what_words_name(self):
        self.write("data/x.csv", "1")
        self.write("train.py", "import lib, sys\nopen(sys.argv[2], 'a').write('ran\\n')\nprint(lib.x, open(sys.argv[1].split('=')[1]).read())")
        self.write("lib.py", "x = 1")
        self.workflow("  a: {command: '{python} {here}/train.py --data={data}/x.csv {here}/log'}", f"places: {{data: '{self.folder}/data'}}")
        said = self.run_flow().stdout
        self.assertIn("a does not run again for {here}/log (changed while it ran)", said)
        self.assertIn("nothing to run", self.run_flow().stdout)
        self.write("data/x.csv", "2")
        said = self.bench("explain", self.folder / "workflow.yaml", "a", "--out", "out").stdout
        self.assertIn("its file '{data}/x.csv' changed", said)
        self.assertIn("a does not run again for {here}/log", said)
        self.run_flow()
        self.write("lib.py", "x = 2")
        self.assertIn("its module 'lib.py' changed", self.bench("explain", self.folder / "workflow.yaml", "a", "--out", "out").stdout)
        self.run_flow()
        self.assertEqual(self.count(), 3)
        self.run_flow(MUSTER_SEED="5")
        self.assertIn("nothing to run", self.run_flow(MUSTER_SEED="5").stdout)
        self.assertEqual(self.count(), 4)

    def test_an_input_that_changes_while_it_is_read(self):
        """Checks the dependencies at the end: a result of mixed inputs is not used again."""
        self.write("rows", "old")
        self.workflow("  a: {command: [sh, -c, 'cat $1 > $2; [ -e {here}/once ] || echo new > $1; touch {here}/once', x, '{rows}', '{made}'], inputs: {rows: rows}, outputs: {made: made}}")
        self.assertIn("a: 'rows' was changed while it ran", self.run_flow().stdout)
        self.run_flow()
        self.assertEqual((self.folder / "out" / "made").read_text(), "new\n")
        self.write("rows", "old")     # also if the input has its old content again
        (self.folder / "once").unlink()
        self.assertIn("'rows' was changed", self.run_flow().stdout)

    def test_a_program_that_changes_while_it_runs(self):
        """Checks that its result is kept, under the key of the old program."""
        script = self.write("prog.sh", "#!/bin/sh\necho ran >> $(dirname $0)/log\n[ -e $1 ] || { touch $1; echo '# more' >> $0; }\n")
        script.chmod(0o755)
        self.workflow("  a: {command: '{here}/prog.sh {here}/once'}")
        self.run_flow()
        self.run_flow()
        self.assertEqual(self.count(), 2)
        self.assertIn("nothing to run", self.run_flow().stdout)

    def test_a_folder_in_which_the_results_lie(self):
        self.write("in/x", "1")
        self.workflow("  a: {command: [sh, -c, 'cd $1 && cat in/x > $2', x, '{here}', '{made}'], outputs: {made: made}}")
        self.assertNotIn("does not run again for", self.run_flow().stdout)
        self.assertIn("nothing to run", self.run_flow().stdout)
        self.write("in/x", "2")
        self.run_flow()
        self.assertEqual((self.folder / "out" / "made").read_text(), "2")

    def test_a_copy_of_the_results(self):
        self.workflow("  a: {command: [sh, -c, 'echo ran >> {here}/log; echo 1 > $1', x, '{made}'], outputs: {made: made}}")
        self.run_flow()
        shutil.copytree(self.folder / "out", self.folder / "copy", symlinks=True)
        self.assertIn("nothing to run", self.bench("run", self.folder / "workflow.yaml", "--out", "copy").stdout)


class Results(bench.Case):
    """Results of muster-bench."""

    def count(self):
        return len((self.folder / "log").read_text().splitlines())

    def file(self, command, template="", sweep="{n: [1]}"):
        return self.experiment(["sh", "-c", f"echo ran >> {{here}}/log; {command}"], sweep=sweep, template=f"read: [{{log: {{v: 'v=(\\d+)'}}}}]\n    {template}",
                               top=f"places: {{data: '{self.folder}/data'}}")

    def test_what_words_name(self):
        self.write("data/x.csv", "v=1\n")
        self.write("other/x.csv", "v=7\n")
        self.write("show.py", "import lib, sys\nprint(open(sys.argv[1].split('=')[1]).read())")
        self.write("lib.py", "")
        file = self.file("exec python3 {here}/show.py --data={data}/x.csv")
        self.run_file(file)
        self.assertIn("1 runs, 1 of them finished before", self.run_file(file).stderr)
        ran = 1
        for change, more in ((lambda: self.write("data/x.csv", "v=2\n"), ()), (lambda: None, ("--place", f"data={self.folder}/other")),
                             (lambda: self.write("lib.py", "# other"), ("--place", f"data={self.folder}/other"))):
            change()
            self.run_file(file, *more)
            self.assertIn("1 of them finished before", self.run_file(file, *more).stderr)
            ran += 1
            self.assertEqual(self.count(), ran)
        self.assertEqual([row["v"] for row in self.results()], ["7"])
        self.run_file(file, *more, MUSTER_SEED="2")
        self.assertEqual(self.count(), ran + 1)

    def test_results_of_an_earlier_run(self):
        """Checks a file that a run should have written, but another run has."""
        self.write("t.txt", "v=1\n")
        os.utime(self.folder / "t.txt", (1, 1))
        file = self.experiment(["true"], sweep="{n: [1]}", template="read: [{log: {v: 'v=(\\d+)'}, file: '{here}/t.txt'}]")
        self.assertIn("was not written by this run", self.run_file(file, status=1).stderr)
        file = self.experiment(["sh", "-c", "echo v=2 > {here}/t.txt"], sweep="{n: [1]}", template="read: [{log: {v: 'v=(\\d+)'}, file: '{here}/t.txt'}]")
        self.run_file(file)

    def test_files_that_runs_write_themselves(self):
        file = self.file("[ -e {here}/once ] || touch {here}/once; echo v=1")
        self.assertIn("'{here}/once' was changed while it ran", self.run_file(file).stderr)
        self.assertIn("1 of them finished before", self.run_file(file).stderr)

    def test_a_program_that_changes_while_it_runs(self):
        """Checks that a result of mixed inputs is no result of the plan."""
        self.write("in", "old")
        file = self.file("cat {here}/in; [ -e {here}/once ] || {{ touch {here}/once; echo new > {here}/in; }}; echo v=1", "inputs: ['{here}/in']")
        self.assertIn("were changed since the runner began", self.run_file(file, status=1).stderr)
        self.run_file(file)
        self.assertIn("1 of them finished before", self.run_file(file).stderr)
        self.assertEqual(self.count(), 2)

    def test_a_checkpoint_of_other_data(self):
        self.write("data/x.csv", "1")
        file = self.file("mkdir -p {checkpoint}; cat {checkpoint}/of 2>/dev/null; cat {data}/x.csv; cp {data}/x.csv {checkpoint}/of; [ -e {here}/go ] && echo v=1")
        self.run_file(file, status=1)
        self.write("data/x.csv", "2")
        self.write("go", "")
        self.run_file(file, "--retry-failed")
        log, = self.folder.glob("out/experiments/*/output/1/log.txt")
        self.assertTrue(log.read_text().startswith("2"), log.read_text())

    def test_a_folder_that_was_removed_while_it_ran(self):
        file = self.file("rm -rf {here}/out; echo v=1")
        self.refused("run", file, "--out", self.folder / "out", says=["was removed or made anew", "out"], status=3)

    def test_results_that_are_not_there(self):
        """Checks collect with runs that never ran."""
        file = self.file("echo v=1", sweep="{n: [1, 2, 3]}")
        scripts = self.bench("manifests", file, "--out", "made", "--kind", "slurm", "--results", self.folder / "out").stdout.split()
        (self.folder / "out" / "experiments").mkdir(parents=True)
        done = self.bench("collect", file, "--out", "out", status=1)
        self.assertIn("0 of 3 runs ended well, 3 have no result", done.stdout)
        srun = self.write("bin/srun", '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
        srun.chmod(0o755)
        subprocess.run(["sh", self.folder / scripts[0]], check=True)
        self.assertIn("1 of 3 runs ended well, 2 have no result", self.bench("collect", file, "--out", "out", status=1).stdout)
        file.write_text(file.read_text())
        log, = self.folder.glob("out/experiments/*/output/1/log.txt")
        log.write_text("v=9\n")   # the run was repeated
        self.bench("collect", file, "--out", "out", status=1)
        self.assertEqual([row["v"] for row in self.results()], ["9"])

    def test_signs_of_formulas_in_a_label(self):
        """Checks that such signs are shown as text, and that a label is shown for any first character."""
        file = self.experiment(["sh", "-c", "echo 'epoch 1 seconds 1 val_accuracy 0.1'; echo 'epoch 2 seconds 2 val_accuracy 0.2'"], sweep="{n: ['$x^{2 $', '_a'], ranks: [1, 2]}",
                               template="read: [{log: {}, series: 'epoch (?P<epoch>\\d+) seconds (?P<seconds>\\d+) val_accuracy (?P<val_accuracy>\\S+)'}]",
                               top="goal: {metric: accuracy, value: 0.15}")
        done = self.run_file(file)
        self.assertNotIn("Traceback", done.stderr)
        page = (self.folder / "out" / "report.html").read_text()
        self.assertIn("$x^{2 $", page[page.index("<svg"):])


class Locks(Case):
    def test_a_folder_that_was_made_anew(self):
        """Checks that the commit detects the new folder, not the start."""
        (self.folder / "out").mkdir()
        first = FolderLock(self.folder / "out")
        first.check()
        shutil.rmtree(self.folder / "out")
        self.assertRaises(Busy, first.check)
        (self.folder / "out").mkdir()
        second = FolderLock(self.folder / "out")
        self.assertRaises(Busy, first.check)
        second.check()
        first.release()
        self.assertRaises(Busy, FolderLock, self.folder / "out")
        second.release()
