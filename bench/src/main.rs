//! `weir-bench side-by-side`: what several proxies cost, measured in one run. `weir-bench reserve`: how long a scorer takes.
//!
//! Costs measured on different days, or one system after the other, say more about the machine than about the
//! systems. Here all of them are up at once and take turns in random order, and only ratios of the same round are
//! compared. The benchmarks of the core alone are criterion's, in `benches/`.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock; none of this runs in wasm")]

#[cfg(target_os = "linux")]
mod reserve;
#[cfg(target_os = "linux")]
mod side_by_side;

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    side_by_side::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> anyhow::Result<()> {
    anyhow::bail!("weir-bench pins cores and reads the CPU clocks of other processes: Linux only")
}
