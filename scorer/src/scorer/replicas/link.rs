//! What scorers tell each other, in Redis or Valkey.
//!
//! One stream has what all tell all, in an order that is the same for everybody: unlike messages that are published, what is said
//! while one reconnects is there afterwards. It is cut by age, so that it holds seconds and not more. Signs of life are a sorted set by
//! the store's own time. What a newcomer has to know is too long for all to read: it goes into a list of the newcomer's own.
//! All names have the group as their hash tag: in a cluster they are on one node.
//!
//! Nothing in the store is trusted to be as it was left. It may come back empty, or with another clock; then new entries have smaller
//! numbers than those that were read, and who waits for larger ones hears nothing. So whoever tells compares the number that it got
//! with how far it had read ([`Position`]), and reads anew where the stream has begun again. A key of another kind, and a stream whose
//! numbers are used up or so far ahead of the clock that it is never cut, are removed: all leases are named with the next beat.

use super::{Link, Parcel, Told};
use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use redis::{AsyncConnectionConfig, Pipeline, RedisResult};
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir::replicas::ReplicaId;

/// What is older is cut off: longer than a scorer may stand still without being told again.
const KEPT: Duration = Duration::from_secs(10);
/// What was left for a newcomer that went again.
const LEFT: Duration = Duration::from_secs(30);
/// How long a read waits for something to be said.
const WAIT: Duration = Duration::from_millis(500);
/// Most frames of one read; fewer after one that came to nothing.
const MOST: usize = 256;
/// Bytes that take a millisecond where the way to the store is slow: large frames may take so much longer.
const SLOWEST: usize = 10_000;

/// Tells all, and cuts off what is old. Says which number it got.
const TELL: &str = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) \
     local function add() return redis.pcall('XADD', KEYS[1], 'MINID', '~', now - ARGV[1], '*', 'f', ARGV[3]) end \
     local function odd(id) if type(id) == 'table' then return id.err:find('WRONGTYPE') or id.err:find('exhausted') end \
     return tonumber(id:match('^%d+')) > now + ARGV[1] end \
     local id = add() if odd(id) then redis.call('DEL', KEYS[1]) id = add() end \
     if type(id) == 'string' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return id";

/// Gives a sign of life, takes the silent off the list and gives those who live.
const BEAT: &str = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) \
     if redis.call('TYPE', KEYS[1]).ok ~= 'zset' then redis.call('DEL', KEYS[1]) end \
     redis.call('ZADD', KEYS[1], now, ARGV[1]) redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2]) \
     redis.call('ZREMRANGEBYSCORE', KEYS[1], now + ARGV[2], '+inf') redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2) return redis.call('ZRANGE', KEYS[1], 0, -1)";

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

/// The number of an entry: milliseconds of the store's clock, and which of that millisecond it is.
type Number = (u64, u64);

fn number(id: &str) -> Option<Number> {
    let (ms, nth) = id.split_once('-')?;
    Some((ms.parse().ok()?, nth.parse().ok()?))
}

/// How far this one has read; who tells and who hears both look at it.
#[derive(Debug, Default)]
pub(super) struct Position(Mutex<Option<Number>>);

impl Position {
    fn get(&self) -> Option<Number> {
        *self.lock()
    }

    /// What was told got the number `got`, after all up to `read` had been read: if that is not larger the stream has begun again,
    /// and is read from its beginning.
    fn told(&self, read: Option<Number>, got: Number) {
        if read.is_some_and(|read| got <= read) {
            *self.lock() = Some((0, 0));
        }
    }

    /// All from `from` to `to` has been read. False: meanwhile the stream was found to have begun again.
    fn read(&self, from: Option<Number>, to: Number) -> bool {
        let mut at = self.lock();
        let stands = *at == from;
        if stands {
            *at = Some(to);
        }
        stands
    }

    fn lock(&self) -> MutexGuard<'_, Option<Number>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
}

impl<'l> Writer<'l> {
    pub(super) fn new(link: &'l Link) -> Self {
        Self { connection: Connection { link, open: None } }
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

    /// Tells all. What was told is taken out of the parcel, so that what failed can be told again.
    pub(super) async fn send(&mut self, parcel: &mut Parcel) -> Result<(), String> {
        let link = self.connection.link;
        while let Some((newcomer, frame)) = parcel.newcomers.front() {
            let key = link.keys.newcomer(*newcomer);
            let push = async |mut connection: MultiplexedConnection| {
                let mut push = Pipeline::new();
                push.cmd("RPUSH").arg(&key).arg(frame).ignore();
                push.cmd("PEXPIRE").arg(&key).arg(LEFT.as_millis() as u64).ignore();
                push.query_async::<()>(&mut connection).await
            };
            self.connection.within(longer(frame), push).await?;
            parcel.newcomers.pop_front();
        }
        while let Some(Told { frame, .. }) = parcel.frames.front() {
            let read = link.position.get();
            let add = async |mut connection: MultiplexedConnection| {
                let mut tell = redis::cmd("EVAL");
                tell.arg(TELL).arg(1).arg(&link.keys.told);
                tell.arg(KEPT.as_millis() as u64).arg((KEPT * 6).as_millis() as u64).arg(frame);
                tell.query_async::<String>(&mut connection).await
            };
            let id = self.connection.within(longer(frame), add).await?;
            if let Some(got) = number(&id) {
                link.position.told(read, got);
            }
            parcel.frames.pop_front();
        }
        Ok(())
    }
}

/// How much longer a large frame may take.
fn longer(frame: &[u8]) -> Duration {
    Duration::from_millis((frame.len() / SLOWEST) as u64)
}

/// Who hears.
pub(super) struct Reader<'l> {
    connection: Connection<'l>,
    /// Frames that are read at once.
    most: usize,
    /// It was said that this one hears, since it last did not.
    pub(super) said_hello: bool,
}

impl<'l> Reader<'l> {
    pub(super) fn new(link: &'l Link) -> Self {
        Self { connection: Connection { link, open: None }, most: MOST, said_hello: false }
    }

    /// What was said since; `joins`: also what was left for this one.
    pub(super) async fn read(&mut self, joins: bool) -> Result<Vec<Vec<u8>>, String> {
        let most = self.most;
        // Where so many do not come in time, fewer may.
        self.most = (most / 2).max(1);
        let frames = self.read_some(most, joins).await?;
        self.most = most.saturating_mul(2).min(MOST);
        Ok(frames)
    }

    async fn read_some(&mut self, most: usize, joins: bool) -> Result<Vec<Vec<u8>>, String> {
        let link = self.connection.link;
        let keys = &link.keys;
        let Some(last) = link.position.get() else {
            // From now on. Nobody answers a newcomer before it has said that it is here.
            let newest = async |mut connection: MultiplexedConnection| {
                let mut newest = redis::cmd("XREVRANGE");
                newest.arg(&keys.told).arg("+").arg("-").arg("COUNT").arg(1);
                newest.query_async::<Vec<(String, redis::Value)>>(&mut connection).await
            };
            let newest = self.connection.within(Duration::ZERO, newest).await?;
            let newest = newest.first().and_then(|(id, _)| number(id));
            link.position.read(None, newest.unwrap_or_default());
            return Ok(Vec::new());
        };
        let wait = if joins { WAIT / 25 } else { WAIT };
        let said = async |mut connection: MultiplexedConnection| {
            let mut read = redis::cmd("XREAD");
            read.arg("COUNT").arg(most).arg("BLOCK").arg(wait.as_millis() as u64);
            read.arg("STREAMS").arg(&keys.told).arg(format!("{}-{}", last.0, last.1));
            read.query_async::<Option<StreamReadReply>>(&mut connection).await
        };
        let said = self.connection.within(wait, said).await?;
        let entries = said.into_iter().flat_map(|said| said.keys).flat_map(|stream| stream.ids);
        let (mut frames, mut upto) = (Vec::new(), last);
        for mut entry in entries {
            let frame = entry.map.remove("f").and_then(|frame| redis::from_redis_value(frame).ok());
            frames.extend(frame);
            upto = number(&entry.id).unwrap_or(upto);
        }
        // Others are asked what was missed.
        self.said_hello &= link.position.read(Some(last), upto);
        if joins {
            let left = async |mut connection: MultiplexedConnection| {
                let mut take = redis::cmd("LPOP");
                take.arg(keys.newcomer(keys.own)).arg(most);
                take.query_async::<Option<Vec<Vec<u8>>>>(&mut connection).await
            };
            // What was said is heard all the same.
            let left = self.connection.within(Duration::ZERO, left).await;
            frames.extend(left.ok().flatten().into_iter().flatten());
        }
        Ok(frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_has_begun_again_is_read_from_its_beginning() {
        let position = Position::default();
        assert!(position.read(None, (100, 3)));
        position.told(position.get(), (100, 4));
        assert_eq!(position.get(), Some((100, 3)), "what is told comes behind what was read");
        // Another told between; what was read before counts.
        assert!(position.read(Some((100, 3)), (200, 0)));
        position.told(Some((100, 3)), (150, 0));
        assert_eq!(position.get(), Some((200, 0)));
        position.told(position.get(), (60, 0));
        assert_eq!(position.get(), Some((0, 0)));
        assert!(!position.read(Some((200, 0)), (300, 0)), "an answer that was on its way");
        assert_eq!(position.get(), Some((0, 0)));
        assert_eq!(number("18446744073709551615-1"), Some((u64::MAX, 1)));
        assert_eq!(number("5"), None);
    }
}
