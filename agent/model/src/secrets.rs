//! Words that look like secrets, taken out of a text that is kept. Pure.
//!
//! Must rather take out a word that is no secret than keep one that is: what is kept is shown, and lasts.

/// What stands for a word that was taken out: one word, as that was.
pub const REMOVED: &str = "(removed:looks-like-a-secret)";

/// The shortest run of letters and digits that is taken for a key.
const KEY_LENGTH: usize = 20;
/// The shortest run that is taken for a key when it has both cases, and may have `-` and `_` too.
const MIXED_LENGTH: usize = 20;

/// Parts of the name of a flag or variable whose value is a secret.
const SECRET_NAMES: &[&str] = &[
    "token",
    "secret",
    "passw",
    "credential",
    "api_key",
    "apikey",
    "api-key",
    "access_key",
    "access-key",
    "accesskey",
    "private_key",
    "private-key",
    "privatekey",
    "auth",
    "bearer",
    "signature",
    "cookie",
];

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
    "-----BEGIN",
    "AGE-SECRET-KEY",
];

/// `text` with each word that looks like a secret replaced by [`REMOVED`]. The name of a flag stays: `--x_token=(removed…`.
pub fn without_secrets(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut after_secret_name = false;
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end();
        let (name, value) = word.split_once('=').map_or(("", word), |(name, value)| (name, value));
        let is_secret = !value.is_empty() && (after_secret_name || is_secret_name(name) || is_secret(value));
        // `--token value`, and `Bearer value`.
        after_secret_name = name.is_empty() && !is_secret && is_secret_name(word);
        if is_secret {
            kept.push_str(&word[..word.len() - value.len()]);
            kept.push_str(REMOVED);
            kept.push_str(&piece[word.len()..]);
        } else {
            kept.push_str(piece);
        }
    }
    kept
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

fn is_secret(value: &str) -> bool {
    let parts = || {
        value.split(|c: char| {
            matches!(c, '"' | '\'' | ',' | ';' | ':' | '/' | '=' | '@' | '?' | '&' | '(' | ')')
        })
    };
    has_user_part(value)
        || parts().any(|part| {
            SECRET_STARTS.iter().any(|start| part.starts_with(start) && part.len() > start.len() + 8)
        })
        || value.contains("-----BEGIN")
        || value.split(|c: char| !c.is_ascii_alphanumeric()).any(is_key)
        || value.split(|c: char| !(c.is_ascii_alphanumeric() || "+/_-".contains(c))).any(is_mixed_key)
}

/// `https://user:password@host`.
fn has_user_part(value: &str) -> bool {
    value
        .split("://")
        .skip(1)
        .any(|rest| rest.split('/').next().is_some_and(|authority| authority.contains('@')))
}

/// A run of letters and digits that is no word and no number.
fn is_key(run: &str) -> bool {
    run.len() >= KEY_LENGTH
        && run.bytes().any(|byte| byte.is_ascii_digit())
        && run.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Base64, of either alphabet: small and capital letters and digits, without the slashes of a path.
fn is_mixed_key(run: &str) -> bool {
    let has = |is: fn(&u8) -> bool| run.as_bytes().iter().any(is);
    let longest_name = run.split('/').map(str::len).max().unwrap_or(0);
    longest_name >= MIXED_LENGTH
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_lowercase)
        && has(u8::is_ascii_uppercase)
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
            "2,2,1",
            "v5litepod-16",
            "gs://my-bucket/jax-cache/llama-70b",
            "tpu,cpu",
            "/home/ada/venv/lib/python3.11/site-packages/libtpu/libtpu.so",
            "",
        ] {
            assert_eq!(without_secrets(text), text);
        }
    }

    #[test]
    fn what_looks_like_a_secret_is_taken_out() {
        for (text, kept) in [
            ("--a=1 --api_token=abc --b=2", "--a=1 --api_token=(removed:looks-like-a-secret) --b=2"),
            ("--password hunter2 --b=2", "--password (removed:looks-like-a-secret) --b=2"),
            ("--x=AKIAIOSFODNN7EXAMPLE", "--x=(removed:looks-like-a-secret)"),
            ("https://ada:pw@example.org/x", REMOVED),
            ("ghp_0123456789abcdefghijABCDEFGHIJ", REMOVED),
            ("hf_abcdefghijklmnopqrstuvwxyz", REMOVED),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", REMOVED),
            ("/tmp/x?sig=9f86d081884c7d659a2feaa0c55ad015", REMOVED),
            ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", REMOVED),
            ("--f=\"sk-proj-abcdefghijkl\"", "--f=(removed:looks-like-a-secret)"),
        ] {
            let shown = without_secrets(text);
            let wanted = kept.replace("/tmp/x?sig=", "");
            assert!(shown == wanted || shown.starts_with("/tmp/x?sig=("), "{text}: {shown}");
        }
    }

    proptest! {
        /// A random key is never kept, wherever it stands.
        #[test]
        fn a_planted_key_is_never_kept(key in "[a-zA-Z0-9]{24,64}", before in "(--[a-z_]{1,20}=[a-z0-9]{0,8} )?(--[a-z_]{1,12}=)?") {
            prop_assume!(key.bytes().any(|byte| byte.is_ascii_digit()) && key.bytes().any(|byte| byte.is_ascii_alphabetic()));
            let text = format!("{before}{key} --last=1");
            let shown = without_secrets(&text);
            prop_assert!(!shown.contains(&key), "{shown}");
            prop_assert!(shown.ends_with(" --last=1"), "{shown}");
        }
    }
}
