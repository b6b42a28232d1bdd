//! What somebody may have meant who wrote a name that is not known.

use strsim::levenshtein;

/// Names that are listed where none is near, at most.
const LISTED_MAX: usize = 8;
/// Longest names that are compared, in bytes: comparing takes the product of both lengths.
const COMPARED_BYTES_MAX: usize = 256;

/// What to say of a name that is not known: the nearest of those that are, or the first of them.
pub(crate) fn what_is_known(name: &str, what: &str, known: &[String]) -> String {
    if let Some(near) = nearest(name, known.iter().map(String::as_str)) {
        return format!("did you mean {near}?");
    }
    match known.len() {
        0 => format!("no {what} is known here"),
        count @ ..=LISTED_MAX => format!("known here: {}", known[..count].join(", ")),
        count => {
            let listed = known[..LISTED_MAX].join(", ");
            format!("known here: {listed} and {} more", count - LISTED_MAX)
        }
    }
}

/// The known name that is most like this one, if one is so like it that this one may be misspelt.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > COMPARED_BYTES_MAX {
        return None;
    }
    let edits_max = (name.len() / 4).clamp(1, 4);
    let near = known
        .filter(|other| other.len() <= COMPARED_BYTES_MAX)
        .map(|other| (levenshtein(&name.to_lowercase(), &other.to_lowercase()), other));
    let near = near.filter(|(edits, _)| *edits <= edits_max);
    near.min().map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_has_a_near_one_and_a_strange_one_has_none() {
        let known = ["kv.Kv", "todo.v1.TodoService", "probe.Probe"];
        let table = [
            ("todo.v1.TodoServic", Some("todo.v1.TodoService")),
            ("todo.v1.todoservice", Some("todo.v1.TodoService")),
            ("kv.KV", Some("kv.Kv")),
            ("prob.Probe", Some("probe.Probe")),
            ("shop.Orders", None),
        ];
        for (name, near) in table {
            assert_eq!(nearest(name, known.into_iter()), near, "{name}");
        }
        assert_eq!(levenshtein("kitten", "sitting"), 3);
    }

    #[test]
    fn without_a_near_one_some_of_what_is_known_is_listed() {
        let known: Vec<String> = (0..20).map(|number| format!("s{number}.S")).collect();
        let said = what_is_known("shop.Orders", "service", &known);
        assert!(said.ends_with("s7.S and 12 more"), "{said}");
        assert_eq!(what_is_known("a", "service", &[]), "no service is known here");
    }
}
