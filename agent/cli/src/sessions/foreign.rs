//! A file that is not an XSpace, as a failure that says what it is and what to do.

use std::path::Path;

use xprof::{format::ForeignFormat, input::open_regular};

use crate::exit::{Exit, Failure};

/// The failure for the file at `path`, which was refused as an XSpace, where its format is known.
pub(super) fn foreign(path: &Path) -> Option<Failure> {
    let format = ForeignFormat::of(open_regular(path).ok()?).ok()??;
    let what = format_args!("{} is {format}, not an XSpace", path.display());
    Some(Failure::new(Exit::BadInput, what).remedy(remedy(&format)))
}

/// The failure for a path that is the address of an object elsewhere.
pub(super) fn remote(path: &Path) -> Option<Failure> {
    let text = path.to_str()?;
    let (scheme, _) = text.split_once("://")?;
    scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()).then(|| {
        let what = format_args!("{text} is the address of remote storage: only local paths are read");
        let copy = match scheme {
            "gs" => format!("copy it first: gcloud storage cp -r {text} ."),
            _ => "copy it to this machine first".to_owned(),
        };
        Failure::new(Exit::Usage, what).remedy(copy)
    })
}

fn remedy(format: &ForeignFormat) -> &'static str {
    match format {
        ForeignFormat::Gzip(None) => "unpack it with gunzip and name the result",
        ForeignFormat::ChromeTrace => "name the .xplane.pb that lies beside it; Perfetto opens this one",
        ForeignFormat::Gzip(Some(inside)) => match **inside {
            ForeignFormat::ChromeTrace => "name the .xplane.pb that lies beside it; Perfetto opens this one",
            _ => "name an .xplane.pb as the profiler wrote it",
        },
        ForeignFormat::Zip => "unpack it with unzip and name the folder or an .xplane.pb in it",
        ForeignFormat::Zstd => "unpack it with unzstd and name the result",
        ForeignFormat::LfsPointer => "fetch the file itself: git lfs pull",
        ForeignFormat::Html => "download the file again: a server answered with a page instead",
        ForeignFormat::Json | ForeignFormat::Sqlite => "name an .xplane.pb as the profiler wrote it",
    }
}
