//! The answers of a FastCGI server, over a socket.
#![no_main]

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use slackwater_node::status::Page;
use tokio::runtime::{Builder, Runtime};

/// A server that answers each request with the next of `answers`.
struct Server {
    page: Page,
    runtime: Runtime,
    answers: Sender<Vec<u8>>,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder").keep();
    let listener = UnixListener::bind(folder.join("s")).expect("a socket");
    let (answers, to_send) = channel::<Vec<u8>>();
    std::thread::spawn(move || {
        for (answer, connection) in to_send.into_iter().zip(listener.incoming()) {
            let mut connection = connection.expect("a connection");
            // The client may have hung up, as it does for an answer that is too long.
            let _ = connection.read(&mut [0; 4096]).and_then(|_| connection.write_all(&answer));
        }
    });
    let page = Page::FastCgi { listen: folder.join("s").display().to_string(), path: "/status".to_owned() };
    Server { page, runtime: Builder::new_current_thread().enable_all().build().expect("a runtime"), answers }
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    SERVER.answers.send(data.to_vec()).expect("the server is there");
    let answer = SERVER.page.fetch(&SERVER.runtime, Duration::from_secs(5));
    if let Err(error) = answer {
        assert!(!error.to_string().contains("within"), "the server has closed: nothing to wait for");
    }
});
