//! The ledger of shared limits in Redis or Valkey: several scorers share it, and it survives them.
//!
//! One record per key of a limit, under a name made of hashes. A change is read, compute, compare-and-set by a script: what
//! two scorers do at once, one of them does over again on what the other one wrote. Every command is about one
//! key, so a cluster takes them through a proxy as well. Many keys travel together: two round trips for every 256 of a
//! call. Time is the store's, since the scorers' clocks may differ.
//!
//! A record expires when nothing of it counts any more. What cannot be read as one is none, and is written over: one such key is
//! nothing to the others. A mark without expiry says since when the store remembers; where it is missing, or says what cannot be,
//! the store is new, was flushed or has another clock, and nothing is granted anew for the length of a lease.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisResult, Value};
use serde::{Deserialize, Serialize, Serializer};
use std::num::NonZeroU64;
use std::time::Duration;
use tokio::sync::Mutex;
use weir::instant::Instant;
use weir::invalid::Invalid;
use weir::limit::{Claim, Claims, FailureMode, Grant, Grants, Record};

/// Where the store is, and how long it may take.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `redis://[user:password@]host:port[/database]`.
    #[serde(serialize_with = "without_password")]
    pub url: String,
    /// Milliseconds that a call may take: less than proxies wait (`share.timeout_ms`), so that they are told, and well above
    /// what a busy host takes now and then. Giving up costs `retry_ms` of limits that are not shared.
    #[serde(default = "Config::timeout_ms")]
    pub timeout_ms: NonZeroU64,
    /// Milliseconds for which it is left alone after a failure.
    #[serde(default = "Config::retry_ms")]
    pub retry_ms: NonZeroU64,
    /// Without it: `open`, each scorer shares out the whole limit by itself; `closed`, it says that it cannot tell, and
    /// the proxies do as their own `failure_mode` has it.
    #[serde(default)]
    pub failure_mode: FailureMode,
}

impl Config {
    const fn timeout_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(100).unwrap();
        DEFAULT
    }

    const fn retry_ms() -> NonZeroU64 {
        const DEFAULT: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
        DEFAULT
    }

    /// A client; connects to nothing yet.
    pub(super) fn client(&self) -> Result<Client, Invalid> {
        // What it says of a wrong URL is not repeated: there may be a password in it.
        Client::open(self.url.as_str())
            .map_err(|_| Invalid::new("url", "redis://[user:password@]host:port is expected"))
    }
}

fn without_password<S: Serializer>(url: &str, serializer: S) -> Result<S::Ok, S::Error> {
    match (url.split_once("//"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => serializer.serialize_str(&format!("{scheme}//…@{host}")),
        _ => serializer.serialize_str(url),
    }
}

/// The store, and the connection to it, if there is one.
pub(super) struct Store {
    client: Client,
    timeout: Duration,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// What came of a call.
pub(super) struct Granted {
    pub(super) grants: Grants,
    /// The records as they are now, in the order of the claims.
    pub(super) records: Vec<Record>,
    /// The store's time.
    pub(super) now: Instant,
}

/// Writes a record if it still is what was read; an empty one is removed. What is no string was read as empty.
const COMPARE_AND_SET: &str = "local is = redis.pcall('GET', KEYS[1]) if type(is) == 'table' then is = '' end \
     if (is or '') ~= ARGV[1] then return 0 end \
     if ARGV[2] == '' then redis.call('DEL', KEYS[1]) \
     else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end return 1";
/// Since when the store remembers.
const MARK: &str = "weir:limit:1:since";
/// How often a change that met another one is done over.
const TRIES: u32 = 8;
/// Keys that travel together: each time has `timeout_ms`.
const AT_ONCE: usize = 256;

impl Store {
    pub(super) fn new(config: &Config) -> Result<Self, Invalid> {
        let timeout = Duration::from_millis(config.timeout_ms.get());
        Ok(Self { client: config.client()?, timeout, connection: Mutex::default() })
    }

    /// Hears claims and grants what is free.
    pub(super) async fn grant(&self, claims: &Claims) -> Result<Granted, String> {
        let mut all = Granted { grants: Grants::default(), records: Vec::new(), now: Instant::default() };
        let mut rest = claims.keys.as_slice();
        loop {
            let (keys, after) = rest.split_at(rest.len().min(AT_ONCE));
            let Granted { grants, records, now } = self.grant_some(claims, keys).await?;
            all.grants.keys.extend(grants.keys);
            all.grants.settling_ms = all.grants.settling_ms.max(grants.settling_ms);
            all.records.extend(records);
            all.now = now;
            rest = after;
            if rest.is_empty() {
                return Ok(all);
            }
        }
    }

    async fn grant_some(&self, claims: &Claims, keys: &[Claim]) -> Result<Granted, String> {
        let granted = tokio::time::timeout(self.timeout, self.try_to_grant(claims, keys)).await;
        let granted = match granted {
            Ok(Ok(granted)) => return Ok(granted),
            Ok(Err(error)) => error.category().to_owned(),
            Err(_) => format!("no answer within {} ms", self.timeout.as_millis()),
        };
        // It may hang, or lead to one that is gone: the next call makes its own.
        *self.connection.lock().await = None;
        Err(granted)
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let fresh = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        *connection = Some(fresh.clone());
        Ok(fresh)
    }

    async fn try_to_grant(&self, claims: &Claims, keys: &[Claim]) -> RedisResult<Granted> {
        let mut connection = self.connect().await?;
        let mut done: Vec<Option<(Grant, Record)>> = vec![None; keys.len()];
        let (mut now, mut settling) = (Instant::default(), Duration::ZERO);
        for _ in 0..TRIES {
            let open = || keys.iter().enumerate().zip(&done).filter(|(_, done)| done.is_none());
            let open: Vec<(usize, &Claim)> = open().map(|(open, _)| open).collect();
            if open.is_empty() && now > Instant::default() {
                break;
            }
            let mut read = Pipeline::new();
            read.ignore_errors().cmd("TIME").cmd("GET").arg(MARK);
            open.iter().for_each(|(_, claim)| {
                read.cmd("GET").arg(name(claim));
            });
            let (seen, mark, texts) = split(read.query_async(&mut connection).await?)?;
            now = seen;
            let since = match mark {
                Mark::Since(since) => since,
                Mark::None | Mark::Odd => {
                    let mut write = Pipeline::new();
                    write.cmd("SET").arg(MARK).arg(now.nanos());
                    if mark == Mark::None {
                        write.arg("NX");
                    }
                    let (since,): (u64,) =
                        write.ignore().cmd("GET").arg(MARK).query_async(&mut connection).await?;
                    Instant::from_nanos(since).min(now)
                }
            };
            settling = (since + claims.lease()).since(now);
            let mut write = Pipeline::new();
            let mut changed = Vec::with_capacity(open.len());
            for ((place, claim), text) in open.into_iter().zip(texts) {
                let mut record: Record = serde_json::from_slice(&text).unwrap_or_default();
                let grant = record.grant(claims.proxy, claims.lease(), claim, !settling.is_zero(), now);
                let lasts = record.ends().map_or(Duration::ZERO, |ends| ends.since(now));
                let next = match lasts.is_zero() {
                    true => String::new(),
                    false => serde_json::to_string(&record).unwrap_or_default(),
                };
                write.cmd("EVAL").arg(COMPARE_AND_SET).arg(1).arg(name(claim));
                // A moment longer than it counts, and never none.
                write.arg(text).arg(next).arg(lasts.as_millis() as u64 + 1);
                changed.push((place, grant, record));
            }
            if changed.is_empty() {
                break;
            }
            let written: Vec<u8> = write.query_async(&mut connection).await?;
            for ((place, grant, record), written) in changed.into_iter().zip(written) {
                if let Some(done) = done.get_mut(place).filter(|_| written == 1) {
                    *done = Some((grant, record));
                }
            }
        }
        // What others changed each time gets nothing now: it is asked for again.
        let lacking = |claim: &Claim| Grant { turn: claim.turn, lacks: true, ..Grant::default() };
        let done = done.into_iter().zip(keys);
        let (keys, records) =
            done.map(|(done, claim)| done.unwrap_or_else(|| (lacking(claim), Record::default()))).unzip();
        let settling_ms = settling.as_nanos().div_ceil(1_000_000) as u64;
        Ok(Granted { grants: Grants { keys, settling_ms }, records, now })
    }
}

fn name(claim: &Claim) -> String {
    format!("weir:limit:1:{{{:016x}.{:016x}}}", claim.rule, claim.key)
}

/// Since when the store remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    None,
    Since(Instant),
    /// What is there is no time, or one that is still to come.
    Odd,
}

/// The store's time, since when it remembers, and the records, each empty where there is none.
fn split(answers: Vec<Value>) -> RedisResult<(Instant, Mark, Vec<Vec<u8>>)> {
    let mut answers = answers.into_iter();
    let mut next = || answers.next().unwrap_or(Value::Nil);
    let (secs, micros): (u64, u64) = redis::from_redis_value(next().extract_error()?)?;
    let now = secs.saturating_mul(1_000_000_000).saturating_add(micros.saturating_mul(1_000));
    let mark = match next() {
        Value::Nil => Mark::None,
        mark => {
            let since = std::str::from_utf8(&bytes(mark)?).ok().and_then(|since| since.parse().ok());
            since
                .filter(|since| *since <= now)
                .map_or(Mark::Odd, |since| Mark::Since(Instant::from_nanos(since)))
        }
    };
    Ok((Instant::from_nanos(now), mark, answers.map(bytes).collect::<RedisResult<_>>()?))
}

/// What a key holds; nothing if that is not bytes. That it cannot be said is an error all the same.
fn bytes(answer: Value) -> RedisResult<Vec<u8>> {
    match answer {
        Value::ServerError(error) if error.code() == "WRONGTYPE" => Ok(Vec::new()),
        answer => {
            Ok(redis::from_redis_value::<Option<Vec<u8>>>(answer.extract_error()?)?.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Value {
        Value::Array(vec![Value::Int(i64::try_from(secs).unwrap()), Value::Int(0)])
    }

    fn text(text: &[u8]) -> Value {
        Value::BulkString(text.to_vec())
    }

    #[test]
    fn what_one_key_holds_is_nothing_to_the_others() {
        let wrong = || redis::parse_redis_value(b"-WRONGTYPE against a key\r\n").unwrap();
        let answers = vec![at(5), text(b"1000000000"), wrong(), text(b"\xff"), Value::Nil, text(b"{}")];
        let (now, mark, records) = split(answers).unwrap();
        assert_eq!((now, mark), (Instant::from_millis(5_000), Mark::Since(Instant::from_millis(1_000))));
        assert_eq!(records, [b"".as_slice(), b"\xff", b"", b"{}"]);
        for odd in [text(b"abc"), text(b"\xff"), text(b"5000000001"), wrong()] {
            assert_eq!(split(vec![at(5), odd]).unwrap().1, Mark::Odd);
        }
        assert_eq!(split(vec![at(5), Value::Nil]).unwrap().1, Mark::None);
        // A store that cannot say is not one that has nothing.
        let loading = redis::parse_redis_value(b"-LOADING the dataset\r\n").unwrap();
        assert!(split(vec![at(5), Value::Nil, loading]).is_err());
    }
}
