//! The settings file: any text is settings or an error that says where.
#![no_main]

use std::path::Path;

use cli::settings::{Layers, load};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let layers = Layers { text: Some((Path::new("tpuscope.toml"), text)), ..Layers::default() };
    if let Err(error) = load(&layers) {
        assert!(!error.to_string().is_empty());
    }
    // The same text as the value of a variable and of a flag.
    let environment = vec![("TPUSCOPE_API__HTTP".to_owned(), text.to_owned())];
    let _ = load(&Layers { environment, ..Layers::default() });
    let _ = load(&Layers { flags: &[text.to_owned()], ..Layers::default() });
});
