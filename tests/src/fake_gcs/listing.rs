//! Lists: prefixes, delimiters and pages.

use std::{collections::BTreeMap, fmt::Write};

use super::{buckets::FakeBucket, replies::escape};

/// One line of a list.
enum Entry<'a> {
    Object(&'a str),
    Prefix(&'a str),
}

/// The `ListBucketResult` for a query. `page_size` is the most that a page may have, whatever was asked.
pub(super) fn list(
    name: &str,
    bucket: &FakeBucket,
    query: &BTreeMap<String, String>,
    page_size: usize,
) -> String {
    let asked = |key: &str| query.get(key).map_or("", String::as_str);
    let (prefix, delimiter) = (asked("prefix"), asked("delimiter"));
    let most = asked("max-keys").parse().unwrap_or(page_size).min(page_size);
    let after = query
        .get("continuation-token")
        .map_or(asked("start-after"), |token| token.strip_prefix(TOKEN).unwrap_or("\u{10ffff}"));
    let mut page = entries(bucket, prefix, delimiter, after);
    let cut = page.len() > most;
    page.truncate(most);
    let mut xml = format!(
        "<?xml version='1.0' encoding='UTF-8'?><ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'>\
         <Name>{}</Name><Prefix>{}</Prefix><KeyCount>{}</KeyCount><IsTruncated>{cut}</IsTruncated>",
        escape(name),
        escape(prefix),
        page.len(),
    );
    if let Some((last, _)) = page.last().filter(|_| cut) {
        let _ = write!(xml, "<NextContinuationToken>{TOKEN}{}</NextContinuationToken>", escape(last));
    }
    for (_, entry) in &page {
        match entry {
            Entry::Object(key) => {
                let object = &bucket.objects[*key];
                let _ = write!(
                    xml,
                    "<Contents><Key>{}</Key><Generation>{}</Generation><MetaGeneration>1</MetaGeneration>\
                     <LastModified>{:.3}</LastModified><ETag>{}</ETag><Size>{}</Size></Contents>",
                    escape(key),
                    object.generation,
                    object.updated,
                    escape(&object.etag),
                    object.size,
                );
            }
            Entry::Prefix(prefix) => {
                let _ = write!(xml, "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escape(prefix));
            }
        }
    }
    xml + "</ListBucketResult>"
}

/// Tokens are opaque to clients; these would betray one that takes them for names.
const TOKEN: &str = "page-after:";

/// The entries after `after`, in order, those below one prefix as one.
fn entries<'a>(
    bucket: &'a FakeBucket,
    prefix: &str,
    delimiter: &str,
    after: &str,
) -> Vec<(&'a str, Entry<'a>)> {
    let mut entries: Vec<(&str, Entry<'_>)> = Vec::new();
    for key in bucket.objects.keys().filter(|key| key.starts_with(prefix)) {
        let below = (!delimiter.is_empty())
            .then(|| key[prefix.len()..].find(delimiter))
            .flatten()
            .map(|at| &key[..prefix.len() + at + delimiter.len()]);
        let name = below.unwrap_or(key);
        let seen = entries.last().is_some_and(|(last, _)| *last == name);
        if name > after && !seen {
            entries.push((name, below.map_or(Entry::Object(key), Entry::Prefix)));
        }
    }
    entries
}
