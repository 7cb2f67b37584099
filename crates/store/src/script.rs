//! Atomic operations in Lua.
//!
//! A script file starts with a header that describes its purpose, each `KEYS[n]` and `ARGV[n]`, and its results. In debug
//! builds every call is checked against the header, so a call with a missing key fails immediately instead of writing to
//! `nil`.

use std::{borrow::Cow, marker::PhantomData, sync::OnceLock, time::Duration};

use redis::{
    ErrorKind, FromRedisValue, RedisError, ScriptInvocation, ServerErrorKind, ToRedisArgs, Value,
    from_redis_value,
};

use crate::{Error, Key, Redis, Role, replicas::WaitReplicas, wire::Wire};

/// How long a call waits for replicas. Later calls on the same connection wait, too.
const REPLICATION: Duration = Duration::from_secs(1);

/// Lets a script pass lists of any length to commands.
const LISTS: &str = include_str!("scripts/lists.lua");

/// A script for the server of role `R`. Declare it as a `static` next to the function that calls it.
pub struct Script<R> {
    name: &'static str,
    /// Joined without separators. The first contains the header.
    parts: Parts,
    compiled: OnceLock<redis::Script>,
    role: PhantomData<fn() -> R>,
}

enum Parts {
    One(&'static str),
    Many(&'static [&'static str]),
}

impl<R: Role> Script<R> {
    /// Creates a script from the text of a file (`include_str!`). `name` appears in errors and logs.
    pub const fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, parts: Parts::One(source), compiled: OnceLock::new(), role: PhantomData }
    }

    /// Creates a script from several texts: its own file with the header, then files that it shares with other scripts.
    pub const fn composed(name: &'static str, parts: &'static [&'static str]) -> Self {
        Self { name, parts: Parts::Many(parts), compiled: OnceLock::new(), role: PhantomData }
    }

    /// Starts a call. Keys and arguments follow in the order of the header.
    pub fn call(&self) -> Call<'_, R> {
        let compiled = self.compiled.get_or_init(|| redis::Script::new(&self.source()));
        Call { script: self, invocation: compiled.prepare_invoke(), keys: Vec::new(), args: 0 }
    }

    /// The complete text, with `lists.lua` after its header if it passes lists to commands.
    pub fn source(&self) -> Cow<'static, str> {
        let own: Cow<'static, str> = match self.parts {
            Parts::One(source) => source.into(),
            Parts::Many(parts) => parts.concat().into(),
        };
        if !own.contains("lists.") {
            return own;
        }
        let header = own.lines().take_while(|line| line.starts_with("--")).map(|line| line.len() + 1).sum();
        let (header, body) = own.split_at(header);
        [header, LISTS, body].concat().into()
    }

    fn header(&self) -> &'static str {
        match self.parts {
            Parts::One(source) => source,
            Parts::Many(parts) => parts.first().copied().unwrap_or_default(),
        }
    }
}

/// One call of a [`Script`].
pub struct Call<'a, R: Role> {
    script: &'a Script<R>,
    invocation: ScriptInvocation<'a>,
    /// The keys are resolved when the server is known, because a fabric of several shards adds a tag to some
    /// of them.
    keys: Vec<Key<R::Space>>,
    args: usize,
}

impl<R: Role> Call<'_, R> {
    /// Appends the next key.
    #[must_use]
    pub fn key(mut self, key: &Key<R::Space>) -> Self {
        self.keys.push(key.clone());
        self
    }

    /// Appends the next argument. A list appends each of its items and belongs last.
    #[must_use]
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.args += arg.num_of_args();
        self.invocation.arg(arg);
        self
    }

    /// Runs the script by its digest. If the server does not have it (after a restart, flush or failover), it is loaded.
    ///
    /// # Errors
    /// If the server is unavailable or rejects the call, if the script raises an error, or if its reply is not a `T`.
    pub async fn run<T: FromRedisValue>(mut self, redis: &Redis<R>) -> Result<T, Error> {
        debug_assert_eq!(Ok(()), self.matches_header(), "script {}", self.script.name);
        for key in &self.keys {
            self.invocation.key(redis.name_of(key).as_ref());
        }
        let invocation = self.invocation;
        let first = self.keys.first().map(|key| redis.name_of(key));
        let call = async |mut wire: Wire| match redis.wait_replicas() {
            WaitReplicas::AtLeast(0) => invocation.invoke_async(&mut wire).await,
            WaitReplicas::AtLeast(count) => {
                replicated(&invocation, count, &mut wire, first.as_deref()).await?.extract()
            }
            WaitReplicas::InSync => {
                let count = redis.replicas.required(&mut wire, first.as_deref()).await?;
                let written = replicated(&invocation, count, &mut wire, first.as_deref()).await?;
                if written.reached < count && redis.replicas.distrust(wire.tag(first.as_deref())) {
                    redis.renew();
                }
                written.extract()
            }
        };
        redis.send(self.script.name, call).await
    }

    fn matches_header(&self) -> Result<(), String> {
        for (table, given) in [("KEYS", self.keys.len()), ("ARGV", self.args)] {
            let (least, open) = header_count(self.script.header(), table);
            if given < least || (given > least && !open) {
                return Err(format!("header names {least} {table}, the call passes {given}"));
            }
        }
        Ok(())
    }
}

/// The reply of a script, and the number of replicas that confirmed its writes.
struct Written {
    reply: Value,
    reached: u32,
    required: u32,
}

impl Written {
    fn extract<T: FromRedisValue>(self) -> Result<T, RedisError> {
        if self.reached < self.required {
            let message = "not every replica that must confirm has the change";
            return Err(RedisError::from((ErrorKind::Io, message)));
        }
        Ok(from_redis_value(self.reply)?)
    }
}

/// Runs a script, and waits at most [`REPLICATION`] until the given number of replicas confirm its writes.
///
/// `WAIT` covers only the writes of its own connection, so both commands are sent together. If `WAIT`
/// followed the reply, it could be sent on a new connection or to another node of the cluster, and would
/// immediately confirm writes that it does not cover.
async fn replicated(
    invocation: &ScriptInvocation<'_>,
    replicas: u32,
    wire: &mut Wire,
    key: Option<&str>,
) -> Result<Written, RedisError> {
    match sent(invocation, replicas, wire, key).await {
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            invocation.load_async(wire).await?;
            sent(invocation, replicas, wire, key).await
        }
        result => result,
    }
}

async fn sent(
    invocation: &ScriptInvocation<'_>,
    required: u32,
    wire: &mut Wire,
    key: Option<&str>,
) -> Result<Written, RedisError> {
    let mut commands = redis::pipe();
    commands.invoke_script(invocation).cmd("WAIT").arg(required).arg(REPLICATION.as_millis() as u64);
    let replies: [Value; 2] = wire
        .together(key, commands)
        .await?
        .try_into()
        .map_err(|_| RedisError::from((ErrorKind::Parse, "two commands have two replies")))?;
    let [reply, reached] = replies;
    let (reply, reached) = (reply.extract_error()?, from_redis_value(reached.extract_error()?)?);
    Ok(Written { reply, reached, required })
}

/// The number of entries of `table` in the header (`KEYS[1]`, or several as `KEYS[2-9]`), and whether the last one means any
/// number (`KEYS[10...]`).
fn header_count(source: &str, table: &str) -> (usize, bool) {
    let mut highest = 0;
    let mut open = false;
    for line in source.lines().map_while(|line| line.strip_prefix("--")) {
        let Some(rest) = line.trim_start().strip_prefix(table).and_then(|rest| rest.strip_prefix('[')) else {
            continue;
        };
        let Some((index, _)) = rest.split_once(']') else { continue };
        open |= index.ends_with("...");
        let last = index.trim_end_matches("...").split('-').next_back();
        let index: usize = last.and_then(|last| last.parse().ok()).unwrap_or(0);
        // A repeated entry (`...`) may have no values.
        highest = highest.max(if open { index - 1 } else { index });
    }
    (highest, open)
}

#[cfg(test)]
mod tests {
    use super::header_count;

    #[test]
    fn a_header_counts_its_keys_and_arguments() {
        let source = "-- Does a thing.\n-- KEYS[1-4]: sets\n-- KEYS[5]: hash\n-- ARGV[1]: integer, ms\n-- ARGV[2...]: ids\nlocal KEYS[9]";
        assert_eq!(header_count(source, "KEYS"), (5, false));
        assert_eq!(header_count(source, "ARGV"), (1, true));
        assert_eq!(header_count("return 1", "KEYS"), (0, false));
    }
}
