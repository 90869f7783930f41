//! `llm-sandbox audit`: checks whether an audit file is complete, and reports where it is not.

use std::process::ExitCode;

use config::Config;

use super::{EXIT_UNAVAILABLE, EXIT_USAGE, VerifyArgs};
use crate::audit::verify::{self, Report, Scope};

pub(super) fn verify(config: &Config, args: VerifyArgs) -> ExitCode {
    let VerifyArgs { file, from, to } = args;
    let Some(file) = file.or_else(|| config.audit_file.clone()) else {
        eprintln!("llm-sandbox: name a file, or set SANDBOX_AUDIT_FILE as for the server");
        return EXIT_USAGE.into();
    };
    match verify::verify(&file, config.server_key.as_ref(), Scope { from, to }) {
        Ok(report) => tell(&report),
        Err(error) => {
            eprintln!("llm-sandbox: {}: {error}", file.display());
            EXIT_UNAVAILABLE.into()
        }
    }
}

fn tell(report: &Report) -> ExitCode {
    let Report { lines, files, times, last, is_sealed, remarks, breaks, more_breaks } = report;
    let sealed = if *is_sealed { ", with the key" } else { "" };
    let count = |many: u64, what| format!("{many} {what}{}", if many == 1 { "" } else { "s" });
    let (lines, files) = (count(*lines, "line"), count(*files as u64, "file"));
    print_line!("{lines} in {files}{sealed}");
    if let Some((first, newest)) = times {
        print_line!("from {first} to {newest}");
    }
    if let Some(last) = last {
        print_line!("the last one is {}, {}", last.seq, last.hash);
    }
    for remark in remarks {
        print_line!("{remark}");
    }
    if report.is_whole() {
        print_line!("whole");
        return ExitCode::SUCCESS;
    }
    for broken in breaks {
        print_line!("{broken}");
    }
    if *more_breaks > 0 {
        print_line!("and {more_breaks} more");
    }
    print_line!("NOT WHOLE");
    ExitCode::FAILURE
}
