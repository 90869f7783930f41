//! Datasets on the embedded engine, at the level of its agent: what a guest can read, what it cannot do, and what the
//! server can request.
//!
//! The tests speak to the agent's process as a server does, without one.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod wasm {
    use std::{
        collections::BTreeMap,
        fs,
        io::Read as _,
        os::unix::{
            fs::{MetadataExt as _, symlink},
            net::UnixListener,
        },
        path::{Path, PathBuf},
        process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    };

    use protocol::{
        frame::{self, Frame, Kind, PROTOCOL_VERSION},
        message::{
            CellState, Failure, FailureCode, FileEntry, Get, Hibernate, List, Put, Request, Reset,
            Run, RunDone, RuntimeName, ServerHello, Warm, WentOn,
        },
    };
    use tempfile::TempDir;

    /// An agent, and the server's end of its stream.
    struct Agent {
        process: Child,
        stdin: Option<ChildStdin>,
        stdout: ChildStdout,
        calls: u32,
    }

    fn command(datasets: &[(&str, &Path)], state: Option<&Path>) -> Command {
        let runtime = support::runtime_folder().join(format!("runtime-{}", embedded::key()));
        assert!(runtime.exists(), "the runtime of the embedded engine is not installed");
        let mut command = Command::new(support::binary());
        command.arg("embedded-agent").arg("--runtime").arg(runtime);
        command.args(["--memory", "268435456", "--data", "67108864", "--scratch", "33554432"]);
        for (name, folder) in datasets {
            command.arg("--dataset").arg(format!("{name}={}", folder.display()));
        }
        if let Some(state) = state {
            command.arg("--state").arg(state);
        }
        command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    impl Agent {
        fn start(datasets: &[(&str, &Path)]) -> Self {
            Self::start_with(datasets, None)
        }

        fn start_with(datasets: &[(&str, &Path)], state: Option<&Path>) -> Self {
            let mut process = command(datasets, state).spawn().unwrap();
            let (stdin, stdout) = (process.stdin.take(), process.stdout.take().unwrap());
            let mut agent = Self { process, stdin, stdout, calls: 0 };
            let hello = ServerHello {
                version: PROTOCOL_VERSION,
                silence_limit_ms: 600_000,
                preload: None,
                undo: Some(5),
                hold: None,
                timezone: None,
                asks: false,
                commands: vec![],
            };
            agent.send(Kind::Hello, &hello, b"");
            assert_eq!(agent.receive().kind, Kind::Hello);
            agent
        }

        fn send(&mut self, kind: Kind, head: &impl serde::Serialize, body: &[u8]) {
            let head = serde_json::to_vec(head).unwrap();
            let stdin = self.stdin.as_mut().unwrap();
            frame::write(stdin, self.calls, kind, &head, &[body]).unwrap();
        }

        fn receive(&mut self) -> Frame {
            frame::read(&mut self.stdout).unwrap().expect("the agent is alive")
        }

        fn ask<R: Request>(
            &mut self,
            request: &R,
            body: &[u8],
        ) -> Result<(R::Reply, Vec<u8>), FailureCode> {
            self.calls += 1;
            self.send(R::KIND, request, body);
            let frame = self.receive();
            assert_eq!(frame.call, self.calls);
            if frame.kind == Kind::Failure {
                return Err(serde_json::from_slice::<Failure>(&frame.head).unwrap().code);
            }
            Ok((serde_json::from_slice(&frame.head).unwrap(), frame.body))
        }

        fn went_on(&mut self) -> Option<WentOn> {
            self.ask(&Warm {}, b"").unwrap().0.went_on
        }

        fn execute(&mut self, runtime: RuntimeName, code: &str, cell: bool) -> (RunDone, String) {
            let run = Run {
                runtime,
                code_len: code.len(),
                has_stdin: false,
                timeout_ms: 60_000,
                output_cap: 100_000,
                cell,
            };
            let (done, body) = self.ask(&run, code.as_bytes()).unwrap();
            let all = body.len() - done.changed_len;
            (done, String::from_utf8_lossy(&body[..all]).trim_end().to_owned())
        }

        /// Runs a program. Returns its output, and its errors behind.
        fn run(&mut self, code: &str) -> String {
            self.execute(RuntimeName::PYTHON, code, false).1
        }

        /// Runs a cell that must end by itself. Returns its outputs and its result.
        fn cell(&mut self, code: &str) -> String {
            let (done, text) = self.execute(RuntimeName::PYTHON, code, true);
            assert_eq!(done.cell.unwrap().state, CellState::Kept, "{code}: {text}");
            text
        }

        fn list(
            &mut self,
            within: &str,
            after: Option<&str>,
        ) -> Result<(Vec<String>, bool), FailureCode> {
            let list = List { after: after.map(Into::into), within: Some(within.to_owned()) };
            let (done, body) = self.ask(&list, b"")?;
            let entries: Vec<FileEntry> = serde_json::from_slice(&body).unwrap();
            Ok((entries.into_iter().map(|entry| entry.path).collect(), done.more))
        }

        fn get(&mut self, path: &str) -> Result<Vec<u8>, FailureCode> {
            let get = Get { path: path.to_owned(), offset: 0, len: 1 << 20, of: None };
            Ok(self.ask(&get, b"")?.1)
        }

        /// Closes the stream, and waits until the agent has ended.
        fn end(mut self) {
            drop(self.stdin.take());
            self.process.wait().unwrap();
        }
    }

    impl Drop for Agent {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    /// A folder with a file, a folder in it, and links within.
    fn sales() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("2026/may")).unwrap();
        fs::write(dir.path().join("x.csv"), "day,sum\n1,10\n2,32\n").unwrap();
        fs::write(dir.path().join("2026/may/deep.txt"), "deep").unwrap();
        symlink("2026/may", dir.path().join("recent")).unwrap();
        symlink("../x.csv", dir.path().join("2026/up.csv")).unwrap();
        dir
    }

    /// Defines `why(f)`: the name of the error that a call raises.
    const WHY: &str = "import errno, os, glob, pathlib, shutil\n\
                       def why(act):\n    try:\n        return act()\n    except OSError as error:\n        \
                       return errno.errorcode.get(error.errno, repr(error))\n";

    #[test]
    fn a_guest_reads_a_dataset_as_any_folder() {
        let sales = sales();
        let mut agent = Agent::start(&[("sales", sales.path())]);
        for (code, expected) in [
            ("print('data' in os.listdir('/'), os.listdir('/data'))", "True ['sales']"),
            ("print(sorted(os.listdir('/data/sales')))", "['2026', 'recent', 'x.csv']"),
            ("print(open('/data/sales/x.csv').read().split())", "['day,sum', '1,10', '2,32']"),
            ("print(open('/data/sales/recent/deep.txt').read())", "deep"),
            ("print(open('/data/sales/2026/up.csv').read(3))", "day"),
            (
                "print(os.stat('/data/sales/x.csv').st_size, os.path.isdir('/data/sales/2026'))",
                "18 True",
            ),
            (
                "print(os.path.islink('/data/sales/recent'), os.readlink('/data/sales/recent'))",
                "True 2026/may",
            ),
            (
                "print(os.path.realpath('/data/sales/recent/deep.txt'))",
                "/data/sales/2026/may/deep.txt",
            ),
            (
                "print([(at, sorted(folders), sorted(files)) for at, folders, files in os.walk('/data')])",
                "[('/data', ['sales'], []), ('/data/sales', ['2026', 'recent'], ['x.csv']), \
                 ('/data/sales/2026', ['may'], ['up.csv']), ('/data/sales/2026/may', [], ['deep.txt'])]",
            ),
            (
                "print(glob.glob('/data/*/*.csv'), sorted(glob.glob('/data/sales/**/*.txt', recursive=True)))",
                "['/data/sales/x.csv'] ['/data/sales/2026/may/deep.txt', '/data/sales/recent/deep.txt']",
            ),
            (
                "print(pathlib.Path('/data/sales/x.csv').read_text()[-3:-1], [p.name for p in pathlib.Path('/data/sales/2026').iterdir() if p.is_dir()])",
                "32 ['may']",
            ),
            (
                "os.chdir('/data/sales/2026')\nprint(open('may/deep.txt').read(), open('../x.csv').read(3), os.path.exists('../../sales/x.csv'), os.listdir('../..'))",
                "deep day True ['sales']",
            ),
            (
                "fd = os.open('/data/sales/x.csv', os.O_RDONLY)\nprint(os.pread(fd, 4, 8), os.lseek(fd, -3, os.SEEK_END), os.read(fd, 9), os.fstat(fd).st_size)",
                "b'1,10' 15 b'32\\n' 18",
            ),
            ("import pandas\nprint(pandas.read_csv('/data/sales/x.csv')['sum'].sum())", "42"),
            (
                "shutil.copy('/data/sales/x.csv', 'x.csv')\nshutil.copytree('/data/sales/2026', 'all')\nprint(os.path.getsize('x.csv'), os.listdir('all/may'))",
                "18 ['deep.txt']",
            ),
            (
                "os.symlink('/data/sales', 'link')\nprint(open('link/x.csv').read(3), os.listdir('link/2026/may'))",
                "day ['deep.txt']",
            ),
            (
                "print(os.path.samefile('/data/sales/x.csv', '/data/sales/2026/up.csv'), os.path.samefile('/data/sales', '/mnt'))",
                "True False",
            ),
        ] {
            assert_eq!(agent.run(&format!("{WHY}{code}")), expected, "{code}");
        }
    }

    /// Each file of a folder with its contents, its times of changes, its mode and its number of names.
    fn everything(folder: &Path) -> BTreeMap<PathBuf, (Vec<u8>, [i64; 6])> {
        let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
        while let Some(at) = folders.pop() {
            for entry in fs::read_dir(&at).unwrap() {
                let path = entry.unwrap().path();
                let about = fs::symlink_metadata(&path).unwrap();
                if about.is_dir() {
                    folders.push(path.clone());
                }
                let times = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
                let more = [i64::from(about.mode()), about.nlink().try_into().unwrap()];
                let all = [&times[..], &more].concat().try_into().unwrap();
                let content = if about.is_file() { fs::read(&path).unwrap() } else { vec![] };
                found.insert(path, (content, all));
            }
        }
        found
    }

    #[test]
    fn nothing_that_a_guest_does_changes_a_dataset() {
        let sales = sales();
        let before = everything(sales.path());
        let mut agent = Agent::start(&[("sales", sales.path())]);
        for (act, expected) in [
            ("open('/data/sales/x.csv', 'w')", "EROFS"),
            ("open('/data/sales/x.csv', 'a')", "EROFS"),
            ("open('/data/sales/x.csv', 'r+')", "EROFS"),
            ("open('/data/sales/new', 'w')", "EROFS"),
            ("open('/data/sales/x.csv', 'x')", "EEXIST"),
            ("open('/data/sales/recent/new', 'w')", "EROFS"),
            ("open('/data/new', 'w')", "EROFS"),
            ("os.open('/data/sales/x.csv', os.O_RDONLY | os.O_TRUNC)", "EROFS"),
            ("os.open('/data/sales/new', os.O_RDONLY | os.O_CREAT)", "EROFS"),
            ("os.ftruncate(os.open('/data/sales/x.csv', os.O_RDONLY), 0)", "EBADF"),
            ("os.write(os.open('/data/sales/x.csv', os.O_RDONLY), b'x')", "EBADF"),
            ("os.mkdir('/data/sales/new')", "EROFS"),
            ("os.mkdir('/data/new')", "EROFS"),
            ("os.rmdir('/data/sales')", "EROFS"),
            ("os.rmdir('/data/sales/2026')", "EROFS"),
            ("os.unlink('/data/sales/x.csv')", "EROFS"),
            ("os.unlink('/data/sales/recent')", "EROFS"),
            ("os.rename('/data/sales/x.csv', '/data/sales/y.csv')", "EROFS"),
            ("os.rename('/data/sales/x.csv', '/mnt/data/y.csv')", "EXDEV"),
            ("os.rename('own', '/data/sales/own')", "EXDEV"),
            ("os.rename('/data/sales', '/data/other')", "EXDEV"),
            ("os.link('/data/sales/x.csv', 'y.csv')", "EXDEV"),
            ("os.link('own', '/data/sales/own')", "EROFS"),
            ("os.symlink('own', '/data/sales/own')", "EROFS"),
            ("os.utime('/data/sales/x.csv')", "EROFS"),
            ("os.utime('/data/sales/recent', follow_symlinks=False)", "EROFS"),
            ("pathlib.Path('/data/sales/x.csv').touch()", "EROFS"),
            ("os.truncate('/data/sales/x.csv', 0)", "EROFS"),
            ("shutil.rmtree('/data/sales/2026')", "EROFS"),
        ] {
            let code = format!("{WHY}open('own', 'w').close()\nprint(why(lambda: {act}))");
            assert_eq!(agent.run(&code), expected, "{act}");
        }
        let read = "for at, _, files in os.walk('/data'):\n    for file in files: open(os.path.join(at, file)).read()";
        assert_eq!(agent.run(&format!("{WHY}{read}")), "");
        assert_eq!(everything(sales.path()), before);
        let put = Put {
            upload: 1,
            path: "/data/sales/new".into(),
            offset: 0,
            last: true,
            overwrite: true,
        };
        assert_eq!(agent.ask(&put, b"x").map(drop), Err(FailureCode::BadPath));
        assert_eq!(everything(sales.path()), before);
    }

    #[test]
    fn no_path_and_no_link_leads_out_of_a_dataset() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("sales");
        fs::create_dir_all(folder.join("sub")).unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        fs::write(folder.join("own"), "own").unwrap();
        for (name, target) in [
            ("up", "../secret"),
            ("absolute", "/etc/passwd"),
            ("own-absolute", folder.join("own").to_str().unwrap()),
            ("to-link", "up"),
            ("root", "/"),
            ("above", ".."),
            ("magic", "/proc/self/fd/0"),
            ("cwd", "/proc/self/cwd"),
            ("loop", "loop"),
        ] {
            symlink(target, folder.join(name)).unwrap();
        }
        fs::hard_link(dir.path().join("secret"), folder.join("hard")).unwrap();
        let fifo = Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap();
        assert!(fifo.success());
        let _socket = UnixListener::bind(folder.join("socket")).unwrap();
        let device = Command::new("mknod")
            .arg(folder.join("null"))
            .args(["c", "1", "3"])
            .stderr(Stdio::null())
            .status();
        let mut agent = Agent::start(&[("sales", &folder)]);
        for (path, expected) in [
            ("own", "own"),
            ("sub/../own", "own"),
            // Nothing tells a hard link from the file itself.
            ("hard", "secret"),
            ("up", "EXDEV"),
            ("to-link", "EXDEV"),
            ("absolute", "EXDEV"),
            ("own-absolute", "EXDEV"),
            ("root/etc/passwd", "EXDEV"),
            ("above/secret", "EXDEV"),
            ("magic", "EXDEV"),
            ("cwd", "EXDEV"),
            ("loop", "ELOOP"),
            ("../secret", "ENOENT"),
            ("../../../../../../etc/passwd", "ENOENT"),
            ("sub/../../sales/own", "own"),
            ("own/x", "ENOTDIR"),
            ("pipe", "EACCES"),
            ("socket", "EACCES"),
            ("sub", "EISDIR"),
        ] {
            let code = format!("{WHY}print(why(lambda: open('/data/sales/{path}').read()))");
            assert_eq!(agent.run(&code), expected, "{path}");
        }
        if device.is_ok_and(|made| made.success()) {
            let code = format!("{WHY}print(why(lambda: open('/data/sales/null').read()))");
            assert_eq!(agent.run(&code), "EACCES");
        }
        for (path, expected) in [
            ("/data/sales/up", FailureCode::BadPath),
            ("/data/sales/../secret", FailureCode::BadPath),
            ("/data/../etc/passwd", FailureCode::BadPath),
            ("/etc/passwd", FailureCode::BadPath),
            ("/data/sales/root/etc/passwd", FailureCode::BadPath),
            ("/data/sales/pipe", FailureCode::NotFound),
            ("/data/sales/sub", FailureCode::NotFound),
            ("/data/sales/none", FailureCode::NotFound),
            ("/data/other/own", FailureCode::NotFound),
            ("/data", FailureCode::NotFound),
        ] {
            assert_eq!(agent.get(path), Err(expected), "{path}");
        }
        assert_eq!(agent.get("/data/sales/own").unwrap(), b"own");
        assert_eq!(
            agent.list("/data/sales", None).unwrap().0,
            ["/data/sales/hard", "/data/sales/own"]
        );
        assert_eq!(agent.list("/data/sales/above", None).map(drop), Err(FailureCode::BadPath));
    }

    #[test]
    fn the_server_lists_files_of_datasets_and_of_folders() {
        let (sales, empty) = (sales(), tempfile::tempdir().unwrap());
        let mut agent = Agent::start(&[
            ("sales", sales.path()),
            ("empty", empty.path()),
            ("sales-2", sales.path()),
        ]);
        agent.run("import os\nos.makedirs('a/b')\nfor f in 'a/b/1', 'a/2', 'ab', 'z': open(f, 'w').write(f)");
        let deep = "/data/sales/2026/may/deep.txt";
        for (within, expected) in [
            ("/data/sales", &[deep, "/data/sales/x.csv"][..]),
            ("/data/sales/", &[deep, "/data/sales/x.csv"]),
            ("/data/sales/2026", &[deep]),
            ("/data/sales/recent", &["/data/sales/recent/deep.txt"]),
            ("/data/sales/x.csv", &["/data/sales/x.csv"]),
            ("/data/empty", &[]),
            (
                "/data",
                &[
                    "/data/sales-2/2026/may/deep.txt",
                    "/data/sales-2/x.csv",
                    deep,
                    "/data/sales/x.csv",
                ],
            ),
            ("a", &["a/2", "a/b/1"]),
            ("a/b", &["a/b/1"]),
            ("a/2", &["a/2"]),
            ("", &["a/2", "a/b/1", "ab", "z"]),
        ] {
            assert_eq!(
                agent.list(within, None),
                Ok((expected.iter().map(|path| (*path).to_owned()).collect(), false)),
                "{within}"
            );
        }
        assert_eq!(agent.list("/data", Some(deep)).unwrap().0, ["/data/sales/x.csv"]);
        assert_eq!(
            agent.list("/data", Some("/data/sales-2/x.csv")).unwrap().0,
            [deep, "/data/sales/x.csv"]
        );
        for (within, expected) in [
            ("/data/none", FailureCode::NotFound),
            ("none", FailureCode::NotFound),
            ("/etc", FailureCode::BadPath),
            ("..", FailureCode::BadPath),
            ("/database", FailureCode::BadPath),
        ] {
            assert_eq!(agent.list(within, None).map(drop), Err(expected), "{within}");
        }
        let (done, _) =
            agent.execute(RuntimeName::PYTHON, "open('/data/sales/x.csv').read()", false);
        assert_eq!(done.changed_len, 2, "no file of a dataset is a changed one");
        let mut none = Agent::start(&[]);
        assert_eq!(none.list("/data", None).map(drop), Err(FailureCode::NotFound));
        assert_eq!(none.get("/data/sales/x.csv").map(drop), Err(FailureCode::NotFound));
        assert_eq!(none.run("import os\nprint(os.path.exists('/data'))"), "False");
    }

    #[test]
    fn a_long_list_comes_in_pages_and_misses_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut expected = vec![];
        for folder in ["a", "a-b", "a.b", "ab"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
            for number in 0..2500 {
                let name = format!("{folder}/{number}{}", "x".repeat(150));
                fs::write(dir.path().join(&name), "").unwrap();
                expected.push(format!("/data/many/{name}"));
            }
        }
        expected.sort_unstable();
        let mut agent = Agent::start(&[("many", dir.path())]);
        let (mut found, mut pages) = (Vec::<String>::new(), 0);
        loop {
            let after = found.last().cloned();
            let (page, more) = agent.list("/data/many", after.as_deref()).unwrap();
            assert!(!page.is_empty());
            found.extend(page);
            pages += 1;
            if !more {
                break;
            }
        }
        assert!(pages > 1 && found == expected, "{pages} pages, {} files", found.len());
    }

    #[test]
    fn files_that_change_meanwhile_harm_only_their_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("shrinks"), vec![b'a'; 3 << 20]).unwrap();
        fs::write(path("replaced"), "old").unwrap();
        fs::create_dir_all(path("folder/sub")).unwrap();
        fs::write(path("folder/sub/file"), "here").unwrap();
        let mut agent = Agent::start(&[("live", dir.path())]);
        let begun = "import os\nshrinks = open('/data/live/shrinks', 'rb', 0)\nreplaced = open('/data/live/replaced', 'rb', 0)\n\
                     walk = os.walk('/data/live/folder')\nlen(shrinks.read(1 << 20)), replaced.read(1), next(walk)[1]";
        assert_eq!(agent.cell(begun), "(1048576, b'o', ['sub'])");
        fs::write(path("shrinks"), "short").unwrap();
        fs::write(path("new"), "new").unwrap();
        fs::rename(path("new"), path("replaced")).unwrap();
        fs::rename(path("folder"), path("moved")).unwrap();
        assert_eq!(agent.cell("shrinks.read(), list(walk)"), "(b'', [])");
        // Between two calls no file is open, and what has its name now is another file.
        assert_eq!(
            agent.cell(&format!("{WHY}why(replaced.read), open('/data/live/replaced').read()")),
            "('EIO', 'new')"
        );
        assert_eq!(agent.cell("shrinks.seek(0), shrinks.read(9)"), "(0, b'short')");
        fs::remove_file(path("shrinks")).unwrap();
        assert_eq!(agent.cell("why(shrinks.read)"), "'EIO'");
    }

    #[test]
    fn many_open_files_are_refused_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..400 {
            fs::write(dir.path().join(number.to_string()), number.to_string()).unwrap();
        }
        let mut agent = Agent::start(&[("many", dir.path())]);
        let code = format!(
            "{WHY}files = []\ndef more():\n    for n in range(400): files.append(open(f'/data/many/{{n}}'))\n\
             print(why(more), len(files) > 200, all(file.read() == str(n) for n, file in enumerate(files)))\n\
             for file in files: file.close()\n\
             print(sum(int(open(f'/data/many/{{n}}').read()) for n in range(400)), len(os.listdir('/data/many')))"
        );
        assert_eq!(agent.run(&code), "EMFILE True True\n79800 400");
        let held = agent.cell("files = [open(f'/data/many/{n}') for n in range(200)]\nlen(files)");
        assert_eq!(held, "200");
        let open = fs::read_dir(format!("/proc/{}/fd", agent.process.id())).map(Iterator::count);
        assert!(open.unwrap() < 64, "no file of a dataset is open between two calls");
        assert_eq!(agent.cell("''.join(file.read(1) for file in files[:12])"), "'012345678911'");
    }

    #[test]
    fn the_same_folder_may_have_two_names_and_be_in_another() {
        let sales = sales();
        let inner = sales.path().join("2026");
        let mut agent =
            Agent::start(&[("a", sales.path()), ("b", sales.path()), ("inner", &inner)]);
        let code = "import os\nprint(sorted(os.listdir('/data')), [open(f'/data/{at}/deep.txt').read() for at in ('a/2026/may', 'b/recent', 'inner/may')])\n\
                    print(os.path.samefile('/data/a/x.csv', '/data/b/x.csv'), os.path.samefile('/data/a', '/data/b'), os.path.samefile('/data/a/2026', '/data/inner'))\n\
                    print(os.path.exists('/data/inner/up.csv'), os.path.exists('/data/a/2026/up.csv'))";
        let out = agent.run(code);
        assert_eq!(out, "['a', 'b', 'inner'] ['deep', 'deep', 'deep']\nTrue True True\nFalse True");
    }

    #[test]
    fn javascript_reads_datasets_and_cannot_change_them() {
        let sales = sales();
        symlink("/etc/passwd", sales.path().join("out")).unwrap();
        let mut agent = Agent::start(&[("sales", sales.path())]);
        let code = "const fs = require('fs');\n\
            const why = (act) => { try { return act(); } catch (error) { return error.code; } };\n\
            console.log(JSON.stringify([\n\
            fs.readdirSync('/data'), fs.readdirSync('/data/sales'), fs.readFileSync('/data/sales/recent/deep.txt', 'utf8'),\n\
            fs.statSync('/data/sales/x.csv').size, fs.existsSync('/data/sales/none'), fs.statSync('/data/sales/2026').isDirectory(),\n\
            why(() => fs.writeFileSync('/data/sales/x.csv', '')), why(() => fs.appendFileSync('/data/sales/new', '')),\n\
            why(() => fs.unlinkSync('/data/sales/x.csv')), why(() => fs.mkdirSync('/data/sales/new')),\n\
            why(() => fs.readFileSync('/data/sales/out')), why(() => fs.readFileSync('/data/sales/none')), why(() => fs.readFileSync('/data/sales'))]))";
        let (_, out) = agent.execute(RuntimeName::JAVASCRIPT, code, false);
        let expected = r#"[["sales"],["2026","out","recent","x.csv"],"deep",18,false,true,"EROFS","EROFS","EROFS","EROFS","EXDEV","ENOENT","EISDIR"]"#;
        assert_eq!(out, expected);
    }

    #[test]
    fn cells_are_undone_and_stopped_with_files_of_datasets_open() {
        let sales = sales();
        let mut agent = Agent::start(&[("sales", sales.path())]);
        agent.cell("f = open('/data/sales/x.csv', 'rb', 0)\nf.read(4)");
        assert_eq!(agent.cell("f.read(4)"), "b'sum\\n'");
        let (done, _) =
            agent.execute(RuntimeName::PYTHON, "f.read(4)\nimport os\nos._exit(3)", true);
        assert_eq!(done.cell.unwrap().state, CellState::RolledBack);
        assert_eq!(agent.cell("f.read(4)"), "b'1,10'");
        let undo = Reset { runtime: RuntimeName::PYTHON, undo: Some(2), files: false };
        agent.ask(&undo, b"").unwrap();
        assert_eq!(agent.cell("f.read(4)"), "b'sum\\n'");
        assert_eq!(agent.cell("f.close()\nopen('/data/sales/recent/deep.txt').read()"), "'deep'");
        agent
            .ask(&Reset { runtime: RuntimeName::PYTHON, undo: Some(1), files: false }, b"")
            .unwrap();
        assert_eq!(agent.cell("f.read(4)"), "b'1,10'");
    }

    #[test]
    fn a_saved_sandbox_wakes_with_without_and_with_other_datasets() {
        let (sales, other, dir) = (sales(), sales(), tempfile::tempdir().unwrap());
        let state = dir.path().join("state");
        let begin = |datasets: &[(&str, &Path)]| Agent::start_with(datasets, Some(&state));
        let mut first = begin(&[("sales", sales.path()), ("z", other.path())]);
        assert_eq!(first.went_on(), Some(WentOn::Nothing));
        first.cell("x = 1\nf = open('/data/sales/x.csv', 'rb', 0)\nf.read(4)");
        assert!(first.ask(&Hibernate { keep: true }, b"").unwrap().0.kept);
        assert_eq!(first.cell("f.read(1)"), "b's'");
        first.end();
        // Another dataset before it does not change which one is meant.
        let mut same = begin(&[("a", other.path()), ("sales", sales.path())]);
        assert_eq!(same.went_on(), Some(WentOn::Last));
        assert_eq!(same.cell("x, f.read(3)"), "(1, b'um\\n')");
        same.end();
        let mut without = begin(&[]);
        assert_eq!(without.went_on(), Some(WentOn::Last));
        let code = format!(
            "{WHY}x, why(f.read), why(lambda: open('/data/sales/x.csv')), os.path.exists('/data')"
        );
        assert_eq!(without.cell(&code), "(1, 'EIO', 'ENOENT', False)");
        without.end();
        let mut with_other = begin(&[("sales", other.path())]);
        assert_eq!(with_other.went_on(), Some(WentOn::Last));
        assert_eq!(
            with_other.cell("x, why(f.read), open('/data/sales/x.csv').read(3)"),
            "(1, 'EIO', 'day')"
        );
        let undo = Reset { runtime: RuntimeName::PYTHON, undo: Some(2), files: false };
        with_other.ask(&undo, b"").unwrap();
        with_other.end();
        let mut again = begin(&[("sales", sales.path())]);
        assert_eq!(again.went_on(), Some(WentOn::Last));
        assert_eq!(again.cell("x, f.read(3)"), "(1, b'1,1')");
    }

    #[test]
    fn an_agent_does_not_start_without_a_folder_of_its_datasets() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        for name in ["missing", "file"] {
            let mut process = command(&[("sales", &dir.path().join(name))], None).spawn().unwrap();
            drop(process.stdin.take());
            assert!(!process.wait().unwrap().success());
            let mut why = String::new();
            process.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            assert!(why.contains("the dataset sales cannot be read"), "{why}");
        }
    }
}
