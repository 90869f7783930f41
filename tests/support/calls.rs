//! Methods that clients, and servers, have in common.

/// Calls that every client makes with its method `call`.
macro_rules! calls {
    () => {
        /// Runs code in a session.
        pub async fn run(&self, session: &str, code: &str) -> Value {
            self.call("run_python", json!({ "session_id": session, "code": code })).await.ok()
        }

        /// Runs code in a session, for at most this number of seconds.
        pub async fn run_for(&self, session: &str, code: &str, seconds: u32) -> Value {
            let arguments = json!({ "session_id": session, "code": code, "timeout_s": seconds });
            self.call("run_python", arguments).await.ok()
        }

        /// Runs a cell in a session, for at most this number of seconds.
        pub async fn cell_for(&self, session: &str, code: &str, seconds: u32) -> Answer {
            let arguments = json!({ "session_id": session, "code": code, "timeout": seconds });
            self.call("execute_code", arguments).await
        }

        /// Runs a cell in a session.
        pub async fn cell(&self, session: &str, code: &str) -> Answer {
            self.call("execute_code", json!({ "session_id": session, "code": code })).await
        }

        /// Uploads a file into a session.
        pub async fn upload(&self, session: &str, name: &str, content: &[u8]) -> Answer {
            self.call("upload_file", $crate::upload_arguments(session, name, content)).await
        }

        /// The list of a session's files, which must be there.
        pub async fn list(&self, session: &str) -> Value {
            self.call("list_artifacts", json!({ "session_id": session })).await.ok()
        }

        /// Names and sizes of a session's files.
        pub async fn files(&self, session: &str) -> Vec<(String, u64)> {
            let list = async |arguments| self.call("list_artifacts", arguments).await;
            $crate::all_files(session, list).await
        }

        /// Closes a session, which must be there.
        pub async fn close(&self, session: &str) {
            self.call("close_session", json!({ "session_id": session })).await.ok();
        }
    };
}

/// The methods that end the process of a server.
macro_rules! process {
    () => {
        /// Sends a signal.
        pub fn signal(&self, name: &str) {
            let pid = self.process.id().expect("running").to_string();
            let sent = std::process::Command::new("kill").args(["-s", name, &pid]).status();
            assert!(sent.expect("kill runs").success());
        }

        /// Waits for the end of the server.
        pub async fn exit_code(&mut self) -> Option<i32> {
            let waited = timeout(PATIENCE, self.process.wait()).await;
            waited.expect("ends in time").expect("waited").code()
        }

        /// The server's peak memory so far, in bytes.
        pub fn peak_memory(&self) -> u64 {
            let pid = self.process.id().expect("running");
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("Linux");
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
            line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
        }
    };
}
