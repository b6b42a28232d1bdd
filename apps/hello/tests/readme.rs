//! The README shows this crate's sources; this holds the two together.

const README: &str = include_str!("../../../README.md");

const SHOWN: [(&str, &str, &str); 5] = [
    ("proto", "proto/hello.proto", include_str!("../proto/hello.proto")),
    ("rust", "build.rs", include_str!("../build.rs")),
    ("rust", "src/lib.rs", include_str!("../src/lib.rs")),
    (
        "rust",
        "src/bin/hello-server.rs",
        include_str!("../src/bin/hello-server.rs"),
    ),
    (
        "rust",
        "src/bin/hello-client.rs",
        include_str!("../src/bin/hello-client.rs"),
    ),
];

#[test]
fn the_readme_shows_the_sources_as_they_are() {
    for (language, path, source) in SHOWN {
        let block = format!("```{language}\n{source}```");
        assert!(
            README.contains(&block),
            "README.md does not show apps/hello/{path} as it is:\n{block}"
        );
    }
}
