//! Names of the schema as names of Rust.

/// Words that are no identifiers in Rust unless they are written raw.
const KEYWORDS: [&str; 48] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn", "else",
    "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro",
    "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "static", "struct", "trait",
    "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];
/// Words that cannot even be written raw.
const NEVER: [&str; 5] = ["self", "Self", "super", "crate", "_"];

/// A field, method or module: `snake_case`, escaped if it is a keyword.
pub(crate) fn snake(name: &str) -> String {
    escape(words(name).join("_").to_lowercase())
}

/// A type or a variant: `UpperCamelCase`.
pub(crate) fn camel(name: &str) -> String {
    let capitalized = |word: String| {
        let mut letters = word.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first
            .into_iter()
            .chain(letters.map(|letter| letter.to_ascii_lowercase()))
            .collect::<String>()
    };
    escape(words(name).into_iter().map(capitalized).collect())
}

/// A constant: `UPPER_SNAKE_CASE`.
pub(crate) fn upper_snake(name: &str) -> String {
    escape(words(name).join("_").to_uppercase())
}

/// A path of modules of a package.
pub(crate) fn package_modules(package: &str) -> Vec<String> {
    package
        .split('.')
        .filter(|part| !part.is_empty())
        .map(snake)
        .collect()
}

/// Makes an identifier of a name that may be a keyword, or may begin with a digit once underscores are gone.
fn escape(name: String) -> String {
    match name.as_str() {
        "" => "_empty".to_owned(),
        never if NEVER.contains(&never) => format!("{name}_"),
        keyword if KEYWORDS.contains(&keyword) => format!("r#{name}"),
        digit if digit.starts_with(|first: char| first.is_ascii_digit()) => format!("_{name}"),
        _ => name,
    }
}

/// The words of a name: between underscores, at a capital after a small letter, and before the last capital of
/// several when a small letter follows (`HTTPServer` is `HTTP` and `Server`). Digits count as the letter before them.
fn words(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    let mut last_letter = None;
    for (at, letter) in letters.iter().enumerate() {
        let before_small = letters.get(at + 1).is_some_and(char::is_ascii_lowercase);
        let begins = letter.is_ascii_uppercase()
            && last_letter.is_some_and(|last: char| last.is_ascii_lowercase() || before_small);
        if begins || *letter == '_' {
            words.push(String::new());
        }
        match (letter, words.last_mut()) {
            ('_', _) => last_letter = None,
            (_, Some(word)) => word.push(*letter),
            (_, None) => {}
        }
        if letter.is_ascii_alphabetic() {
            last_letter = Some(*letter);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_rusts() {
        let cases = [
            ("key", "key", "Key"),
            ("if_version", "if_version", "IfVersion"),
            ("HTTPServer", "http_server", "HttpServer"),
            ("fieldName2Value", "field_name2_value", "FieldName2Value"),
            ("GetKV", "get_kv", "GetKv"),
            ("_hidden__field_", "hidden_field", "HiddenField"),
            ("type", "r#type", "Type"),
            ("self", "self_", "Self_"),
            ("_1", "_1", "_1"),
            ("A1B", "a1b", "A1b"),
            ("KIND_2D", "kind_2d", "Kind2d"),
        ];
        for (name, snake_name, camel_name) in cases {
            assert_eq!(
                (snake(name), camel(name)),
                (snake_name.into(), camel_name.into()),
                "{name}"
            );
        }
        assert_eq!(upper_snake("ColorRed"), "COLOR_RED");
        assert_eq!(package_modules("google.type.v1"), ["google", "r#type", "v1"]);
    }
}
