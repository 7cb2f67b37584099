//! A server that records the calls of a command and answers them.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Output},
    sync::{Arc, Mutex, mpsc},
    thread,
};

/// A call, as the server received it.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Method and path, without the query.
    pub(crate) name: String,
    /// All headers in lower case.
    pub(crate) headers: Vec<String>,
}

/// The server.
pub(crate) struct Server {
    pub(crate) url: String,
    calls: Arc<Mutex<Vec<Call>>>,
    /// A message for each call.
    pub(crate) called: mpsc::Receiver<()>,
}

impl Server {
    /// Starts a server that answers calls as `answer` says: status and body. Status 0 never answers.
    pub(crate) fn start(answer: fn(&str) -> (u16, &'static str)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (recorded, (sender, called)) = (calls.clone(), mpsc::channel());
        thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().flatten() {
                // A command that was ended in the middle of a call is of no interest.
                let Ok((call, stream)) = read(stream) else { continue };
                let (status, body) = answer(&call.name);
                recorded.lock().unwrap().push(call);
                if status == 0 {
                    silent.push(stream);
                } else {
                    let _ended = write(stream, status, body);
                }
                let _unread = sender.send(());
            }
        });
        Self { url, calls, called }
    }

    /// The calls since the last reading.
    pub(crate) fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    /// The names of the calls so far.
    pub(crate) fn names(&self) -> Vec<String> {
        self.calls.lock().unwrap().iter().map(|call| call.name.clone()).collect()
    }

    /// A command that calls this server, with nothing of the tester's tenant.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_signalbox"));
        command.args(words).current_dir("/").env_clear().env("SIGNALBOX_URL", &self.url);
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }
}

fn read(stream: TcpStream) -> std::io::Result<(Call, TcpStream)> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut line, mut length, mut headers) = (String::new(), 0, Vec::new());
    reader.read_line(&mut line)?;
    loop {
        let mut head = String::new();
        reader.read_line(&mut head)?;
        let head = head.trim().to_ascii_lowercase();
        if head.is_empty() {
            break;
        }
        if let Some(value) = head.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        headers.push(head);
    }
    reader.take(length).read_to_end(&mut Vec::new())?;
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let name = format!("{method} {}", target.split('?').next().unwrap_or_default());
    Ok((Call { name, headers }, stream))
}

fn write(mut stream: TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} -\r\nETag: \"7\"\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
