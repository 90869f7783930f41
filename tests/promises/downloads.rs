//! Downloads from the real program: the host names that it answers to, and the cost of many downloads at once. The
//! answers of the artifact server are tested in `inside/downloads.rs`.

use serde_json::json;
use support::{On, PATIENCE, Server, name, on_docker};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

on_docker! {
    a_hundred_downloads_of_a_hundred_megabytes_cost_less_than_40_megabytes,
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("in time")
}

#[tokio::test]
async fn allowed_hosts_are_a_setting() {
    let hosts = "sandbox.test, other.test";
    let mut server = Server::start_with(On::Local, &[("SANDBOX_ALLOWED_HOSTS", hosts)]).await;
    let base = server.base().await;
    let address = base.strip_prefix("http://").expect("http");
    for (host, status) in [("other.test", "200"), ("evil.test", "421")] {
        let mut stream = within(TcpStream::connect(address)).await.expect("connected");
        let request = format!("GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        within(stream.write_all(request.as_bytes())).await.expect("sent");
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.expect("received");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    server.close_input();
    assert_eq!(server.exit_code().await, Some(0));
}

/// Reads only the head of an answer.
async fn begun(url: &str) -> TcpStream {
    let (host, target) = url.strip_prefix("http://").and_then(|u| u.split_once('/')).expect("http");
    let mut stream = within(TcpStream::connect(host)).await.expect("connected");
    let request = format!("GET /{target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    within(stream.write_all(request.as_bytes())).await.expect("sent");
    let mut head = vec![];
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.expect("received"));
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "));
    stream
}

async fn a_hundred_downloads_of_a_hundred_megabytes_cost_less_than_40_megabytes() {
    const SIZE: usize = 100_000_000;
    let (mut server, id) = (Server::start(On::Docker).await, name("hundred"));
    let code = "f = open('large', 'wb')\nfor n in range(1000): f.write(bytes([n % 251]) * 100_000)";
    server.run(&id, code).await;
    let url = server.url(&id, "large").await;
    // Half of the memory is the program itself, which is large in a debug build.
    let before = server.peak_memory();
    // All at once, and unread: the buffers on the way to the clients fill up.
    let streams = futures::future::join_all((0..100).map(|_| begun(&url))).await;
    // Other calls do not wait for them.
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    assert_eq!(listed["artifacts"][0]["size_bytes"], SIZE);

    let readers = streams.into_iter().map(|mut stream| {
        tokio::spawn(async move {
            let (mut got, mut piece) = (0, vec![0; 128 << 10]);
            loop {
                let read = within(stream.read(&mut piece)).await.expect("received");
                if read == 0 {
                    return got;
                }
                for at in [0, read - 1] {
                    assert_eq!(usize::from(piece[at]), (got + at) / 100_000 % 251);
                }
                got += read;
            }
        })
    });
    for got in futures::future::join_all(readers).await {
        assert_eq!(got.expect("read"), SIZE);
    }
    let cost = server.peak_memory() - before;
    assert!(cost < 40_000_000, "{cost}");
    server.close_input();
    assert_eq!(server.exit_code().await, Some(0));
}
