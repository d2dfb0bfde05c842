//! Names that a mistyped one may stand for.

/// Less similar names were not meant.
const SIMILAR: f64 = 0.75;

/// The most similar candidate, if one is similar enough to be meant.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_names(name, candidates, 1).into_iter().next()
}

/// The candidates that are similar enough to be meant, the most similar first, at most `most`.
pub fn nearest_names<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    most: usize,
) -> Vec<&'a str> {
    let similarity = |candidate| (strsim::jaro_winkler(name, candidate), candidate);
    let mut similar: Vec<(f64, &str)> =
        candidates.into_iter().map(similarity).filter(|(similarity, _)| *similarity > SIMILAR).collect();
    similar.sort_by(|a, b| b.0.total_cmp(&a.0));
    similar.into_iter().take(most).map(|(_, candidate)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_finds_its_neighbours_and_another_word_none() {
        let names = ["capture", "sessions", "captures", "status"];
        assert_eq!(nearest("captrue", names), Some("capture"));
        assert_eq!(nearest_names("captrue", names, 5), ["capture", "captures"]);
        assert_eq!(nearest("xyz", names), None);
    }
}
