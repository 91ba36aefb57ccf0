//! The calls of the Proxy-Wasm ABI 0.2.1, each failure a value.
//!
//! The SDK has these too, but its versions panic on a status that they do not expect ("no such header map now" is
//! one), and on header values that are not UTF-8. The functions here are the ones that Weir uses; the ABI is
//! that of github.com/proxy-wasm/spec. Its unsafety stays in this file.
#![allow(unsafe_code)]

use crate::Headers;
use proxy_wasm::types::{BufferType, MapType, MetricType};

mod raw {
    #[link(wasm_import_module = "env")]
    unsafe extern "C" {
        pub(super) fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
        pub(super) fn proxy_replace_header_map_value(
            map: u32,
            k: *const u8,
            kn: usize,
            v: *const u8,
            vn: usize,
        ) -> u32;
        pub(super) fn proxy_remove_header_map_value(map: u32, k: *const u8, kn: usize) -> u32;
        pub(super) fn proxy_get_buffer_bytes(
            buffer: u32,
            from: usize,
            len: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_set_buffer_bytes(
            buffer: u32,
            from: usize,
            len: usize,
            v: *const u8,
            vn: usize,
        ) -> u32;
        pub(super) fn proxy_get_property(
            path: *const u8,
            n: usize,
            data: *mut *mut u8,
            size: *mut usize,
        ) -> u32;
        pub(super) fn proxy_set_property(path: *const u8, n: usize, v: *const u8, vn: usize) -> u32;
        pub(super) fn proxy_send_local_response(
            status: u32,
            details: *const u8,
            details_size: usize,
            body: *const u8,
            body_size: usize,
            headers: *const u8,
            headers_size: usize,
            grpc_status: i32,
        ) -> u32;
        pub(super) fn proxy_continue_stream(stream: u32) -> u32;
        pub(super) fn proxy_set_effective_context(id: u32) -> u32;
        pub(super) fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
        pub(super) fn proxy_define_metric(kind: u32, name: *const u8, n: usize, id: *mut u32) -> u32;
        pub(super) fn proxy_increment_metric(id: u32, by: i64) -> u32;
        pub(super) fn proxy_record_metric(id: u32, value: u64) -> u32;
        pub(super) fn proxy_get_shared_data(
            k: *const u8,
            kn: usize,
            v: *mut *mut u8,
            vn: *mut usize,
            cas: *mut u32,
        ) -> u32;
        pub(super) fn proxy_set_shared_data(
            k: *const u8,
            kn: usize,
            v: *const u8,
            vn: usize,
            cas: u32,
        ) -> u32;
        pub(super) fn proxy_register_shared_queue(name: *const u8, n: usize, id: *mut u32) -> u32;
        pub(super) fn proxy_enqueue_shared_queue(id: u32, v: *const u8, vn: usize) -> u32;
        pub(super) fn proxy_dequeue_shared_queue(id: u32, v: *mut *mut u8, vn: *mut usize) -> u32;
    }

    #[link(wasm_import_module = "wasi_snapshot_preview1")]
    unsafe extern "C" {
        pub(super) fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
        pub(super) fn random_get(bytes: *mut u8, n: usize) -> u32;
    }
}

const OK: u32 = 0;

/// Takes bytes that the host has allocated for us, with our allocator.
fn take(get: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Option<Vec<u8>> {
    let (mut data, mut size) = (std::ptr::null_mut::<u8>(), 0);
    if get(&raw mut data, &raw mut size) != OK {
        return None;
    }
    if data.is_null() {
        return Some(Vec::new());
    }
    // SAFETY: the host got `data` from the SDK's `malloc`, which makes a boxed slice of exactly `size` bytes, filled
    // it, and passes it on to us alone.
    Some(unsafe { Vec::from_raw_parts(data, size, size) })
}

// SAFETY of all calls below: pointers and lengths are those of live Rust values; the host reads or writes within
// them during the call and keeps none of them.

pub(crate) fn headers(map: MapType) -> Headers {
    let bytes = take(|data, size| unsafe { raw::proxy_get_header_map_pairs(map as u32, data, size) });
    Headers::decode(bytes.unwrap_or_default())
}

pub(crate) fn replace_header(map: MapType, name: &str, value: &str) {
    unsafe {
        raw::proxy_replace_header_map_value(
            map as u32,
            name.as_ptr(),
            name.len(),
            value.as_ptr(),
            value.len(),
        );
    }
}

pub(crate) fn remove_header(map: MapType, name: &str) {
    unsafe {
        raw::proxy_remove_header_map_value(map as u32, name.as_ptr(), name.len());
    }
}

pub(crate) fn buffer(buffer: BufferType, from: usize, len: usize) -> Option<Vec<u8>> {
    take(|data, size| unsafe { raw::proxy_get_buffer_bytes(buffer as u32, from, len, data, size) })
}

/// Replaces all `len` bytes of a buffer.
pub(crate) fn set_buffer(buffer: BufferType, len: usize, bytes: &[u8]) {
    unsafe {
        raw::proxy_set_buffer_bytes(buffer as u32, 0, len, bytes.as_ptr(), bytes.len());
    }
}

pub(crate) fn property(path: &[u8]) -> Option<Vec<u8>> {
    take(|data, size| unsafe { raw::proxy_get_property(path.as_ptr(), path.len(), data, size) })
}

pub(crate) fn set_property(name: &[u8], value: &[u8]) {
    unsafe {
        raw::proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len());
    }
}

pub(crate) fn respond(status: u16, headers: &[(&str, &str)], body: &[u8]) {
    let headers = Headers::encode(headers);
    unsafe {
        let (details, no_grpc_status) = (b"weir", -1);
        raw::proxy_send_local_response(
            u32::from(status),
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            no_grpc_status,
        );
    }
}

pub(crate) fn continue_request() {
    unsafe {
        raw::proxy_continue_stream(0);
    }
}

pub(crate) fn enter(context: u32) -> bool {
    unsafe { raw::proxy_set_effective_context(context) == OK }
}

pub(crate) fn tick_every(millis: u32) {
    unsafe {
        raw::proxy_set_tick_period_milliseconds(millis);
    }
}

pub(crate) fn define_metric(kind: MetricType, name: &str) -> u32 {
    let mut id = u32::MAX;
    unsafe {
        raw::proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &raw mut id);
    }
    id
}

pub(crate) fn add_metric(id: u32, by: u64) {
    unsafe {
        raw::proxy_increment_metric(id, i64::try_from(by).unwrap_or(i64::MAX));
    }
}

pub(crate) fn shift_metric(id: u32, by: i64) {
    unsafe {
        raw::proxy_increment_metric(id, by);
    }
}

pub(crate) fn record_metric(id: u32, value: u64) {
    unsafe {
        raw::proxy_record_metric(id, value);
    }
}

pub(crate) fn shared(key: &str) -> Option<(Vec<u8>, u32)> {
    let mut cas = 0;
    let value = take(|data, size| unsafe {
        raw::proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &raw mut cas)
    })?;
    Some((value, cas))
}

pub(crate) fn set_shared(key: &str, value: &[u8], cas: u32) -> bool {
    unsafe { raw::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) == OK }
}

pub(crate) fn register_queue(name: &str) -> Option<u32> {
    let mut id = 0;
    unsafe { (raw::proxy_register_shared_queue(name.as_ptr(), name.len(), &raw mut id) == OK).then_some(id) }
}

pub(crate) fn enqueue(queue: u32, message: &[u8]) {
    unsafe {
        raw::proxy_enqueue_shared_queue(queue, message.as_ptr(), message.len());
    }
}

pub(crate) fn dequeue(queue: u32) -> Option<Vec<u8>> {
    take(|data, size| unsafe { raw::proxy_dequeue_shared_queue(queue, data, size) })
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn monotonic() -> u64 {
    const MONOTONIC: u32 = 1;
    clock(MONOTONIC)
}

/// Nanoseconds since 1970.
pub(crate) fn wall() -> u64 {
    const REALTIME: u32 = 0;
    clock(REALTIME)
}

fn clock(which: u32) -> u64 {
    let mut now = 0;
    unsafe {
        raw::clock_time_get(which, 0, &raw mut now);
    }
    now
}

pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    unsafe {
        raw::random_get(bytes.as_mut_ptr(), bytes.len());
    }
    u64::from_le_bytes(bytes)
}
