//! What scorers tell each other, in Redis or Valkey.
//!
//! One stream has what all tell all, in an order that is the same for everybody: unlike messages that are published, what is said
//! while one reconnects is there afterwards. It is cut by age, so that it holds seconds and not more. Signs of life are a sorted set by
//! the store's own time. What a newcomer has to know is too long for all to read: it goes into a list of the newcomer's own.
//! All names have the group as their hash tag: in a cluster they are on one node.

use super::{Link, Parcel};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use redis::{AsyncConnectionConfig, Pipeline, RedisResult};
use std::future::Future;
use std::time::Duration;
use weir::replicas::ReplicaId;

/// What is older is cut off: longer than a scorer may stand still without being told again.
const KEPT: Duration = Duration::from_secs(10);
/// What was left for a newcomer that went again.
const LEFT: Duration = Duration::from_secs(30);
/// How long a read waits for something to be said.
const WAIT: Duration = Duration::from_millis(500);
/// Most frames of one read.
const MOST: usize = 256;

/// Gives a sign of life, takes the silent off the list and gives those who live.
const BEAT: &str = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) \
     redis.call('ZADD', KEYS[1], now, ARGV[1]) redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2]) \
     redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2) return redis.call('ZRANGE', KEYS[1], 0, -1)";

/// The names in the store.
#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
    told: String,
    living: String,
    own: ReplicaId,
}

impl Keys {
    pub(super) fn new(group: &str, own: ReplicaId) -> Self {
        let prefix = format!("weir:replicas:1:{{{group}}}");
        Self { told: format!("{prefix}:told"), living: format!("{prefix}:living"), prefix, own }
    }

    fn newcomer(&self, id: ReplicaId) -> String {
        format!("{}:for:{id:016x}", self.prefix)
    }
}

/// A connection that is made when it is needed, and anew after a failure.
struct Connection<'l> {
    link: &'l Link,
    open: Option<MultiplexedConnection>,
}

impl<'l> Connection<'l> {
    /// Does something within the store's `timeout_ms` and `more`.
    async fn within<T, F>(
        &mut self,
        more: Duration,
        act: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, String>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let most = self.link.timeout + more;
        let open = self.open.take();
        let done = tokio::time::timeout(most, async {
            let connection = match open {
                Some(open) => open,
                None => {
                    let config =
                        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
                    self.link.client.get_multiplexed_async_connection_with_config(&config).await?
                }
            };
            RedisResult::Ok((act(connection.clone()).await?, connection))
        });
        match done.await {
            Ok(Ok((done, connection))) => {
                self.open = Some(connection);
                Ok(done)
            }
            // What it says of an error may quote what was sent.
            Ok(Err(error)) => Err(error.category().to_owned()),
            Err(_) => Err(format!("no answer within {} ms", most.as_millis())),
        }
    }
}

/// Who tells.
pub(super) struct Writer<'l> {
    connection: Connection<'l>,
    /// The time of the store's last answer, in milliseconds.
    time: u64,
}

impl<'l> Writer<'l> {
    pub(super) fn new(link: &'l Link) -> Self {
        Self { connection: Connection { link, open: None }, time: 0 }
    }

    /// Gives a sign of life, of which one is due `every` so often; gives those who live.
    pub(super) async fn beat(&mut self, every: Duration) -> Result<Vec<ReplicaId>, String> {
        let keys = &self.connection.link.keys;
        let silence = every.as_millis().saturating_mul(4);
        let own = format!("{:016x}", keys.own);
        let living: Vec<String> = self
            .connection
            .within(Duration::ZERO, async |mut connection| {
                let mut beat = redis::cmd("EVAL");
                beat.arg(BEAT).arg(1).arg(&keys.living).arg(own).arg(silence.to_string());
                beat.query_async(&mut connection).await
            })
            .await?;
        Ok(living.iter().filter_map(|id| ReplicaId::from_str_radix(id, 16).ok()).collect())
    }

    /// Tells all.
    pub(super) async fn send(&mut self, parcel: &Parcel) -> Result<(), String> {
        let keys = &self.connection.link.keys;
        for (newcomer, frames) in &parcel.newcomers {
            let key = keys.newcomer(*newcomer);
            for frame in frames {
                let push = async |mut connection: MultiplexedConnection| {
                    let mut push = Pipeline::new();
                    push.cmd("RPUSH").arg(&key).arg(frame).ignore();
                    push.cmd("PEXPIRE").arg(&key).arg(LEFT.as_millis() as u64).ignore();
                    push.query_async::<()>(&mut connection).await
                };
                self.connection.within(Duration::ZERO, push).await?;
            }
        }
        if parcel.frames.is_empty() {
            return Ok(());
        }
        let mut add = Pipeline::new();
        let oldest = self.time.saturating_sub(KEPT.as_millis() as u64);
        for frame in &parcel.frames {
            add.cmd("XADD").arg(&keys.told).arg("MINID").arg("~").arg(oldest).arg("*").arg("f").arg(frame);
        }
        add.cmd("PEXPIRE").arg(&keys.told).arg((KEPT * 6).as_millis() as u64).ignore();
        let ids: Vec<String> = self
            .connection
            .within(Duration::ZERO, async |mut connection| add.query_async(&mut connection).await)
            .await?;
        self.time = ids.last().and_then(|id| id.split('-').next()?.parse().ok()).unwrap_or(self.time);
        Ok(())
    }
}

/// Who hears.
pub(super) struct Reader<'l> {
    connection: Connection<'l>,
    /// The last that was read.
    last: Option<String>,
    /// It was said that this one hears, since it last did not.
    pub(super) said_hello: bool,
}

impl<'l> Reader<'l> {
    pub(super) fn new(link: &'l Link) -> Self {
        Self { connection: Connection { link, open: None }, last: None, said_hello: false }
    }

    /// What was said since; `joins`: also what was left for this one.
    pub(super) async fn read(&mut self, link: &Link, joins: bool) -> Result<Vec<Vec<u8>>, String> {
        let keys = &link.keys;
        let Some(last) = self.last.clone() else {
            // From now on. Nobody answers a newcomer before it has said that it is here.
            let newest = async |mut connection: MultiplexedConnection| {
                let mut newest = redis::cmd("XREVRANGE");
                newest.arg(&keys.told).arg("+").arg("-").arg("COUNT").arg(1);
                newest.query_async::<Vec<(String, redis::Value)>>(&mut connection).await
            };
            let newest = self.connection.within(Duration::ZERO, newest).await?;
            self.last = Some(newest.into_iter().next().map_or_else(|| "0-0".to_owned(), |(id, _)| id));
            return Ok(Vec::new());
        };
        let wait = if joins { WAIT / 25 } else { WAIT };
        let said = async |mut connection: MultiplexedConnection| {
            let mut read = redis::cmd("XREAD");
            read.arg("COUNT").arg(MOST).arg("BLOCK").arg(wait.as_millis() as u64);
            read.arg("STREAMS").arg(&keys.told).arg(&last);
            read.query_async::<Option<StreamReadReply>>(&mut connection).await
        };
        let said = self.connection.within(wait, said).await?;
        let entries = said.into_iter().flat_map(|said| said.keys).flat_map(|stream| stream.ids);
        let mut frames = Vec::new();
        for mut entry in entries {
            let frame = entry.map.remove("f").and_then(|frame| redis::from_redis_value(frame).ok());
            frames.extend(frame);
            self.last = Some(entry.id);
        }
        if joins {
            let left = async |mut connection: MultiplexedConnection| {
                let mut take = redis::cmd("LPOP");
                take.arg(keys.newcomer(keys.own)).arg(MOST);
                take.query_async::<Option<Vec<Vec<u8>>>>(&mut connection).await
            };
            frames.extend(self.connection.within(Duration::ZERO, left).await?.into_iter().flatten());
        }
        Ok(frames)
    }
}
