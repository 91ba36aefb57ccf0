//! The command line.

use clap::Parser;

/// Starts Envoy, engines and scorer, sends conversations over two models, and says where each request went and why.
///
/// Then the same requests go round robin through a fresh gateway, for comparison. The exit code is 0 if everything
/// was answered and at least 95 percent of the later turns stayed where their conversation was.
#[derive(Debug, Parser)]
#[command(name = "weir-demo", bin_name = "./build.sh demo")]
pub(crate) struct Options {
    /// Print JSON lines: an object per request, then one with the summary.
    #[arg(long)]
    pub(crate) json: bool,
    /// Leave the gateway up after the summary, until ctrl-C.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Let Envoy choose by itself, without the scorer.
    #[arg(long)]
    pub(crate) no_scorer: bool,
    /// Conversations with each of the two models.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) conversations: u16,
    /// Turns of each conversation.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub(crate) turns: u16,
}
