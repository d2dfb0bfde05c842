//! Words that look like secrets, taken out of a text of flags that is kept. Pure.
//!
//! A text is read word by word. A secret is told by the name before it, by its form, or by a header such as
//! `Authorization:`. Must rather take out what is no secret than keep one: what is kept is shown, and lasts. So a text
//! whose words cannot be told apart, because it has quotes, is taken out whole if anything in it looks like a secret.

/// What stands for what was taken out: one word.
pub const REMOVED: &str = "(removed:looks-like-a-secret)";

/// A run of letters and digits of this length is taken for a key: no word is so long.
const KEY_LENGTH: usize = 20;
/// The same if it has letters and digits.
const LETTERS_AND_DIGITS_LENGTH: usize = 16;
/// The same if it has letters of both cases and digits.
const MIXED_LENGTH: usize = 12;
/// The shortest run of both cases and digits that may have `+`, `-` and `_` too.
const BASE64_LENGTH: usize = 20;
/// The same where it has slashes too, as relative paths do.
const SLASHED_LENGTH: usize = 32;

/// What the name of a secret contains, without the characters that part its words.
const SECRET_WORDS: &[&str] = &[
    "token",
    "secret",
    "passw",
    "passphrase",
    "passcode",
    "credential",
    "apikey",
    "accesskey",
    "privatekey",
    "auth",
    "bearer",
    "signature",
    "cookie",
];
/// One part of the name of a secret: `my_pw`, `x.pin`, `gitPat`.
const SECRET_PARTS: &[&str] =
    &["hmac", "jwt", "login", "otp", "pat", "pem", "pin", "private", "sas", "session", "sid", "sig"];
/// How a part of the name of a secret ends: `key`, `mykey`, `dbpass`.
const SECRET_ENDS: &[&str] = &["key", "pass", "pw", "pwd", "cred"];

/// How keys of well-known services begin.
const SECRET_STARTS: &[&str] = &[
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "eyJ",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "sk-",
    "sk_",
    "hf_",
    "npm_",
    "pypi-",
    "SG.",
    "dop_v1_",
    "AGE-SECRET-KEY",
];

/// What is taken out behind a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// Nothing.
    Nothing,
    /// The words up to the next flag: a value may have several, such as `Basic c2VjcmV0`.
    ToNextFlag,
    /// The next word whatever it is, and those up to the next flag: the name of a secret has no value yet.
    NextWord,
    /// All: a header has no end that can be told.
    All,
}

/// `text` with each word that looks like a secret replaced by [`REMOVED`]. The name of a flag stays: `--x_token=(removed…`.
pub fn without_secrets(text: &str) -> String {
    let is_quoted = text.contains(['"', '\'', '`', '\\']);
    let mut kept = String::with_capacity(text.len());
    let mut behind = Behind::Nothing;
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end();
        let (start, next) = match behind {
            Behind::All => (0, Behind::All),
            Behind::NextWord if !word.is_empty() => (0, Behind::ToNextFlag),
            Behind::ToNextFlag if !is_flag(word) => (0, Behind::ToNextFlag),
            Behind::NextWord => (0, Behind::NextWord),
            Behind::ToNextFlag | Behind::Nothing => look(word),
        };
        behind = next;
        if is_quoted && behind != Behind::Nothing {
            return REMOVED.to_owned();
        }
        kept.push_str(&word[..start]);
        if start < word.len() {
            kept.push_str(REMOVED);
        }
        kept.push_str(&piece[word.len()..]);
    }
    kept
}

/// `--name`, `--name=value`.
fn is_flag(word: &str) -> bool {
    word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// The bytes of a word that may be kept, and what is taken out behind it.
fn look(word: &str) -> (usize, Behind) {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let (name, value) = match word.split_once('=') {
        Some((name, value)) if name.chars().all(plain) => (name, Some(value)),
        None if word.starts_with('-') && word.chars().all(plain) => (word, None),
        _ => ("", Some(word)),
    };
    if word.contains("-----") {
        return (0, Behind::All);
    }
    if looks_like_a_key(name) {
        return (0, Behind::ToNextFlag);
    }
    match value {
        None if is_secret_name(name) => (word.len(), Behind::NextWord),
        None => (word.len(), Behind::Nothing),
        Some("") if is_secret_name(name) => (word.len(), Behind::NextWord),
        Some(value) => {
            let is_named = value.split(|c: char| !plain(c)).any(is_secret_name);
            let start = word.len() - value.len();
            match is_secret_name(name) || is_named || looks_like_a_key(value) {
                true if is_named && value.contains(':') => (start, Behind::All),
                // `token = x`, `Bearer x`.
                true if is_named => (start, Behind::NextWord),
                true => (start, Behind::ToNextFlag),
                false => (word.len(), Behind::Nothing),
            }
        }
    }
}

fn is_secret_name(name: &str) -> bool {
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let letters = letters.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| letters.contains(word))
        || parts(name).iter().any(|part| is_secret_part(part))
}

fn is_secret_part(part: &str) -> bool {
    let part = part.trim_end_matches(|c: char| c.is_ascii_digit());
    [part, part.strip_suffix('s').unwrap_or(part)]
        .into_iter()
        .any(|part| SECRET_PARTS.contains(&part) || SECRET_ENDS.iter().any(|end| part.ends_with(end)))
}

/// The parts of a name in lower case: `gitPat_2.SASToken` has `git`, `pat`, `2`, `sas` and `token`.
fn parts(name: &str) -> Vec<String> {
    let bytes = name.as_bytes();
    let mut parts = vec![String::new()];
    for (at, byte) in bytes.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        let after = bytes.get(at + 1);
        let is_head = byte.is_ascii_uppercase()
            && before.is_some_and(|before| {
                before.is_ascii_lowercase()
                    || before.is_ascii_uppercase() && after.is_some_and(u8::is_ascii_lowercase)
            });
        if is_head || !byte.is_ascii_alphanumeric() {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| byte.is_ascii_alphanumeric()) {
            part.push(char::from(byte.to_ascii_lowercase()));
        }
    }
    parts
}

/// Whether a part of the text has the form of a key, or names a user.
fn looks_like_a_key(text: &str) -> bool {
    let mut parts = text.split(|c: char| "\"',;:/=?&()".contains(c));
    // `https://user:password@host`.
    text.contains('@')
        || parts.any(|part| {
            SECRET_STARTS.iter().any(|start| part.starts_with(start) && part.len() > start.len() + 8)
        })
        || text.split(|c: char| !c.is_ascii_alphanumeric()).any(is_key)
        || text.split(|c: char| !(c.is_ascii_alphanumeric() || "+/_-".contains(c))).any(is_base64)
}

/// A run of letters and digits that is no word and no number.
fn is_key(run: &str) -> bool {
    let has = |is: fn(&u8) -> bool| run.as_bytes().iter().any(is);
    let least = match (has(u8::is_ascii_digit), has(u8::is_ascii_lowercase), has(u8::is_ascii_uppercase)) {
        (true, true, true) => MIXED_LENGTH,
        (true, true, false) | (true, false, true) => LETTERS_AND_DIGITS_LENGTH,
        _ => KEY_LENGTH,
    };
    run.len() >= least
}

/// Base64, of either alphabet: small and capital letters and digits. The slashes of an absolute path divide it.
fn is_base64(run: &str) -> bool {
    let has = |is: fn(&u8) -> bool| run.as_bytes().iter().any(is);
    let longest_name = run.split('/').map(str::len).max().unwrap_or(0);
    let is_long = longest_name >= BASE64_LENGTH || (run.len() >= SLASHED_LENGTH && !run.starts_with('/'));
    is_long && has(u8::is_ascii_digit) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn flags_of_compilers_are_kept() {
        for text in [
            "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true --xla_tpu_scoped_vmem_limit_kib=98304",
            "--xla_dump_to=/tmp/xla_dump/run_2026-11-30 --xla_gpu_autotune_level=4",
            "--xla_tpu_spmd_rng_bit_generator_unsafe=1\t--xla_enable_async_all_gather=true",
            "--xla_disable_hlo_passes=fusion,algsimp --xla_host=[::1]:8471 -v=1 --xla_force_host_platform_device_count=8",
            "2,2,1",
            "v5litepod-16",
            "gs://my-bucket/jax-cache/llama-70b",
            "tpu,cpu",
            "/home/ada/venv/lib/python3.11/site-packages/libtpu/libtpu.so",
            "/mnt/Ada/Projects2/Llama/Checkpoints/Compiled",
            "--xla_a='b c' --xla_d=\"e\"",
            "",
        ] {
            assert_eq!(without_secrets(text), text);
        }
    }

    #[test]
    fn what_looks_like_a_secret_is_taken_out() {
        for (text, kept) in [
            ("--a=1 --api_token=abc --b=2", "--a=1 --api_token=R --b=2"),
            ("--password hunter2 --b=2", "--password R --b=2"),
            ("--xla_tpu_key=true\t--b=2", "--xla_tpu_key=R\t--b=2"),
            ("--x=AKIAIOSFODNN7EXAMPLE", "--x=R"),
            ("https://ada:pw@example.org/x", "R"),
            ("--x=ada:pw@example.org", "--x=R"),
            ("ghp_0123456789abcdefghijABCDEFGHIJ", "R"),
            ("hf_abcdefghijklmnopqrstuvwxyz", "R"),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "R"),
            ("/tmp/x?sig=9f86d081884c7d659a2feaa0c55ad015", "R"),
            ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "R"),
            ("dGhpcyBpcyBhIHNlY3JldA== --b=2", "R --b=2"),
            ("--f=\"sk-proj-abcdefghijkl\"", "R"),
            ("-----BEGIN PRIVATE KEY----- MIIE --b=2", "R R R R R"),
            ("--a=1 Authorization: Bearer hunter2n --b=2", "--a=1 R R R R"),
            ("--auth=Basic aHVudGVy --b=2", "--auth=R R --b=2"),
            ("token = hunter2 --b=2", "R R R --b=2"),
        ] {
            assert_eq!(without_secrets(text), kept.replace('R', REMOVED), "{text}");
        }
    }

    /// Names of secrets as people write them.
    fn secret_name() -> impl Strategy<Value = String> {
        let word = proptest::sample::select(
            "pass passwd password pw pwd passphrase secret secrets token key keys apikey cred creds credentials auth \
             authorization bearer sas private pin cookie session jwt signature sig"
                .split_whitespace()
                .collect::<Vec<_>>(),
        );
        let case = |form: u8, word: &str| match form {
            0 => word.to_uppercase(),
            1 => word[..1].to_uppercase() + &word[1..],
            _ => word.to_owned(),
        };
        (word, 0_u8..3, proptest::sample::select(vec!["_", "-", ".", "Camel"]), any::<(bool, bool)>())
            .prop_map(move |(word, form, part, (before, after))| {
                let camel = part == "Camel";
                let name = if camel { case(1, word) } else { case(form, word) };
                let part = if camel { "" } else { part };
                let before = if before || camel { format!("my{part}") } else { String::new() };
                let after = if after { if camel { "Value" } else { part } } else { "" };
                let tail = if after.is_empty() || camel { "" } else { "x2" };
                format!("{before}{name}{after}{tail}")
            })
    }

    /// The ways in which a name N and a secret S stand in a text.
    const FORMS: &[&str] = &[
        "--N=S",
        "--xla_N=S",
        "--N S",
        "--N= S",
        "-N S",
        "N=S",
        "N = S",
        "N: S",
        "N:S",
        "N: Bearer S",
        "N Basic S",
        "--N=Digest S",
        "--env=N=S",
        "--env=N S",
        "--env N=S",
        "--env='N=S'",
        "--x=\"N=S\"",
        "'--x=\"N=S\"'",
        "--x=\"N: two words S\"",
        "--x='N=a --S'",
        "--x={\"N\":\"S\"}",
        "--x={N:S}",
        "--x=a=1,N=S,b=2",
        "--x=a;N:S",
        "https://h/p?N=S&x=1",
        "https://h/p%3FN%3DS",
        "--x=https://ada:S@h/p",
        "--x=ada:S@h",
        "Authorization: Bearer S",
        "Proxy-Authorization:S",
        "--header='Cookie: a=S'",
        "--N=\"S --b\"",
        "--N=a\\ S",
        "--N=S-N",
    ];

    proptest! {
        /// A random key is never kept, wherever it stands.
        #[test]
        fn a_planted_key_is_never_kept(key in "[a-zA-Z0-9]{20,64}", before in "(--[a-z_]{1,20}=[a-z0-9]{0,8} )?(--[a-z_]{1,12}=)?") {
            let text = format!("{before}{key} --last=1");
            let shown = without_secrets(&text);
            prop_assert!(!shown.contains(&key), "{shown}");
        }

        /// A short secret is never kept, nor a part of it, if its name says what it is.
        #[test]
        fn a_named_secret_is_never_kept(
            name in secret_name(),
            secret in "Zq[0-9]{3}(Zq[0-9]{2}){0,3}",
            form in proptest::sample::select(FORMS),
            before in "(--xla_[a-z]{1,8}=[0-9]{1,3} ){0,2}",
            after in "( --xla_[a-z]{1,8}=[0-9]{1,3}){0,2}",
        ) {
            let text = format!("{before}{}{after}", form.replace('S', &secret).replace('N', &name));
            let shown = without_secrets(&text);
            prop_assert!(!shown.contains("Zq"), "{text}: {shown}");
        }
    }
}
