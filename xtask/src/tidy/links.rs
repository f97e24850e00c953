//! Links between pages lead somewhere, and the book has every page.

use super::tree::{File, Problem, Tree};

const SUMMARY: &str = "docs/SUMMARY.md";

/// Every relative link of a page names a file or folder of the tree, and a heading there if it
/// names one; and `docs/SUMMARY.md` has every page of `docs`.
pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let pages = || tree.files().iter().filter(|file| file.extension() == "md");
    let mut problems: Vec<Problem> = pages().flat_map(|page| dead(tree, page)).collect();
    let Some(summary) = tree.get(SUMMARY) else { return problems };
    let named: Vec<String> =
        links(summary).filter_map(|(_, link)| target(summary, path(link))).collect();
    for page in pages().filter(|page| page.is_under("docs") && page.path != SUMMARY) {
        if !named.contains(&page.path) {
            problems.push(Problem::new(&page.path, 1, format!("is not in {SUMMARY}")));
        }
    }
    problems
}

/// The links of a page that lead nowhere.
fn dead(tree: &Tree, page: &File) -> Vec<Problem> {
    let complain = |line, link: &str, why: &str| {
        Problem::new(&page.path, line, format!("the link `{link}` {why}"))
    };
    let judge = |(line, link): (usize, &str)| {
        let place = match path(link) {
            "" => Some(page.path.clone()),
            path => target(page, path),
        };
        let exists = place.as_ref().is_some_and(|place| tree.has(place));
        let Some(place) = place.filter(|_| exists) else {
            return Some(complain(line, link, "names no file of the tree"));
        };
        let (_, heading) = link.split_once('#')?;
        let there = tree.get(&place).filter(|file| file.extension() == "md")?;
        let is_there = headings(there).any(|name| name == heading);
        (!is_there).then(|| complain(line, link, "names no heading of that page"))
    };
    links(page).filter_map(judge).collect()
}

fn path(link: &str) -> &str {
    link.split('#').next().unwrap_or_default()
}

/// The relative links of a page with their lines, outside of code.
fn links(page: &File) -> impl Iterator<Item = (usize, &str)> {
    prose(page).flat_map(|(number, line)| {
        let parts = line.split("](").skip(1);
        let links = parts.filter_map(|rest| rest.split(')').next());
        links.filter(|link| !link.contains("://") && !link.contains(' ')).map(move |l| (number, l))
    })
}

/// The lines of a page that are not code.
fn prose(page: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((index + 1, line))
    })
}

/// The headings of a page as links name them: in lower case, with hyphens for blanks.
fn headings(page: &File) -> impl Iterator<Item = String> {
    prose(page).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

/// The path in the tree that a link of a page leads to; `None` if it leads out of the tree.
fn target(page: &File, link: &str) -> Option<String> {
    let mut folders: Vec<&str> = page.path.split('/').collect();
    folders.pop();
    for part in link.split('/').filter(|part| !part.is_empty() && *part != ".") {
        match part {
            ".." => drop(folders.pop()?),
            name => folders.push(name),
        }
    }
    Some(folders.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(page: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("docs/A.md", page),
            ("docs/b/B.md", "# What now?\n"),
            (SUMMARY, "- [A](A.md)\n- [B](b/B.md)\n"),
        ]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_lead_somewhere() {
        assert!(said("[b](b/B.md#what-now), [f](b), [w](https://a.b/c)\n").is_empty());
        assert!(said("## Here\n[me](#here)\n```\n[no](link)\n```\n").is_empty());
        assert_eq!(
            said("\n[b](b/C.md)"),
            ["docs/A.md:2: the link `b/C.md` names no file of the tree"]
        );
        assert_eq!(said("[b](../../x)").len(), 1);
        assert_eq!(
            said("[b](b/B.md#what)"),
            ["docs/A.md:1: the link `b/B.md#what` names no heading of that page"]
        );
    }

    #[test]
    fn the_book_has_every_page() {
        let tree = Tree::of(&[("docs/A.md", ""), (SUMMARY, "")]);
        let said: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(said, ["docs/A.md:1: is not in docs/SUMMARY.md"]);
    }
}
