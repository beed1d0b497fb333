//! Writes the messages' Rust types from `schema/*.json`, which `tools/schema.py` writes from `slackwater/core/messages/`.
//!
//! `typify` does not fit: it sorts fields by name, writes defaults out instead of leaving them out, makes one type for
//! each use of an enum or of a knob's value, and checks names with a regular expression engine at run time, which the
//! monitor's 8 MB do not have room for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs};

use serde_json::Value;

const FOLDER: &str = "../schema";

fn main() {
    println!("cargo::rerun-if-changed={FOLDER}");
    let mut files: Vec<PathBuf> = fs::read_dir(FOLDER)
        .expect("the schema folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    let mut types: BTreeMap<String, String> = BTreeMap::new();
    for path in files {
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).expect("a readable schema");
        let schema: Value = serde_json::from_str(&text).expect("a schema in JSON");
        let definitions = schema["$defs"].as_object().into_iter().flat_map(serde_json::Map::values);
        for definition in definitions.chain([&schema]) {
            let source = if definition["enum"].is_array() { enum_of(definition) } else { struct_of(definition) };
            let kept = types.entry(title(definition).to_owned()).or_insert_with(|| source.clone());
            assert_eq!(*kept, source, "two types have one name");
        }
    }
    let source: String = types.into_values().collect();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("messages.rs"), source).expect("a writable OUT_DIR");
}

fn struct_of(schema: &Value) -> String {
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    let mut fields = String::new();
    let mut has_default = true;
    for (field, property) in schema["properties"].as_object().expect("a struct has properties") {
        let mut kind = type_of(property);
        fields += &doc(property);
        if required.iter().any(|name| name == field) {
            has_default &= property["$ref"].is_null() && property["anyOf"].is_null();
        } else {
            if !is_zero(&property["default"]) {
                kind = format!("Option<{kind}>");
            }
            let is_left_out = if kind == "Option<f64>" { "is_no_number" } else { "is_default" };
            fields += &format!("    #[serde(default, skip_serializing_if = \"{is_left_out}\")]\n");
        }
        fields += &format!("    pub {field}: {kind},\n");
    }
    let default = if has_default { ", Default" } else { "" };
    let derives = format!("#[derive(Debug, Clone, PartialEq, Serialize, Deserialize{default})]");
    format!("{}{derives}\npub struct {} {{\n{fields}}}\n", doc(schema), title(schema))
}

fn enum_of(schema: &Value) -> String {
    let words = schema["enum"].as_array().expect("an enum has words").iter().map(|word| word.as_str().expect("a word"));
    let variants: String =
        words.map(|word| format!("    #[serde(rename = {word:?})]\n    {},\n", camel_case(word))).collect();
    let derives = "#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]";
    format!("{}{derives}\npub enum {} {{\n{variants}}}\n", doc(schema), title(schema))
}

/// The Rust type of a field.
fn type_of(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return reference.rsplit('/').next().unwrap_or_default().to_owned();
    }
    if let Some(any_of) = schema["anyOf"].as_array() {
        let (null, others): (Vec<&Value>, Vec<&Value>) = any_of.iter().partition(|schema| schema["type"] == "null");
        let kind = if let [other] = others[..] { type_of(other) } else { "Value".to_owned() };
        return if null.is_empty() { kind } else { format!("Option<{kind}>") };
    }
    match schema["type"].as_str() {
        Some("number") => "f64".to_owned(),
        Some("integer") if schema["minimum"] == 0 => "u64".to_owned(),
        Some("integer") => "i64".to_owned(),
        Some("string") => "String".to_owned(),
        Some("boolean") => "bool".to_owned(),
        Some("object") => format!("BTreeMap<String, {}>", type_of(&schema["additionalProperties"])),
        Some("array") => match schema["prefixItems"].as_array() {
            Some(items) => format!("({})", items.iter().map(|item| type_of(item) + ", ").collect::<String>()),
            None => format!("Vec<{}>", type_of(&schema["items"])),
        },
        None if schema["enum"].is_array() => "String".to_owned(),
        _ => panic!("no Rust type is known for {schema}"),
    }
}

fn title(schema: &Value) -> &str {
    schema["title"].as_str().expect("a type has a title")
}

/// Whether a field's default is also its Rust type's; where it is not, an absent field is `None`.
fn is_zero(default: &Value) -> bool {
    match default {
        Value::Null => true,
        Value::Bool(is_true) => !is_true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn doc(schema: &Value) -> String {
    schema["description"].as_str().map_or(String::new(), |text| format!("#[doc = {text:?}]\n"))
}

fn camel_case(word: &str) -> String {
    let parts = word.split(['_', ' ']).map(|part| part[..1].to_uppercase() + &part[1..]);
    parts.collect()
}
