//! Settings: file, environment, flags, in rising order. One module per section, each a plain struct whose doc
//! comments become the commented default file.
//!
//! Must never read anything but the file and the environment that it is handed.
