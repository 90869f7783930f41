//! The macro that makes the settings of the rows in [`table`](super::table).

/// Makes of the rows a constant with the name of each variable, [`GROUPS`], and [`Config`] with what reads it.
macro_rules! settings {
    ($($title:literal {$(
        $(#[doc = $text:literal])+
        $field:ident: $type:ty = $variable:ident[$key:literal]($default:expr, $form:expr, $parse:expr $(,)?);
    )*})*) => {
        $($(
            pub(super) const $variable: Setting<$type> = Setting {
                row: Row {
                    name: stringify!($variable),
                    key: $key,
                    default: $default,
                    form: $form,
                    // Each line of a comment begins with a blank.
                    description: concat!($($text),+).trim_ascii_start(),
                },
                parse: $parse,
            };
        )*)*

        /// All settings.
        pub const GROUPS: &[Group] = &[$(Group { title: $title, rows: &[$($variable.row),*] }),*];

        /// Every setting of the program, and what is known of where they came from. Sizes are in bytes.
        #[derive(Debug, Clone, PartialEq)]
        #[cfg_attr(
            doc,
            expect(rustdoc::bare_urls, rustdoc::invalid_html_tags, reason = "texts for operators are plain")
        )]
        pub struct Config {
            $($(
                #[doc = concat!("`", stringify!($variable), "`: ")]
                $(#[doc = $text])+
                pub $field: $type,
            )*)*
            /// Memory, in bytes, with which libraries would be preloaded, if only the limits prevent that.
            pub preload_needs: Option<u64>,
            /// The source of the tokens, if there are any.
            pub tokens_from: Option<TokensFrom>,
            /// Why this engine was chosen, if `SANDBOX_ENGINE` is `auto`.
            pub engine_reason: Option<String>,
            /// How to make the other engine usable, if it is not.
            pub engine_instead: Option<String>,
            /// Variables that are set but have no effect, because their prefix is misspelt.
            pub misspelt: Vec<Misspelt>,
            /// The values that are not defaults, each with its place, by the settings' variables. Secrets are hidden.
            pub given: BTreeMap<&'static str, Given>,
            /// The absolute path of the file of variables that was read, if there was one.
            pub env_file: Option<PathBuf>,
            /// The path of the settings file that was read, if there was one.
            pub file: Option<PathBuf>,
            /// The absolute paths of the files and folders of the server's own.
            pub own_places: Vec<PathBuf>,
            /// Remarks about values of the settings file that have no effect.
            pub remarks: Vec<String>,
            /// The callers that have tokens.
            pub callers: Callers,
            /// The datasets.
            pub datasets: Datasets,
            /// The servers and services that programs in sandboxes can call.
            pub upstreams: Upstreams,
        }

        impl Config {
            /// Reads each setting by its row.
            pub(super) fn read(reader: &mut Reader) -> Self {
                Self {
                    $($($field: reader.read(&$variable),)*)*
                    preload_needs: None,
                    tokens_from: None,
                    engine_reason: None,
                    engine_instead: None,
                    misspelt: vec![],
                    given: BTreeMap::new(),
                    env_file: None,
                    file: None,
                    own_places: vec![],
                    remarks: vec![],
                    callers: Callers::default(),
                    datasets: Datasets::default(),
                    upstreams: Upstreams::default(),
                }
            }

            /// These settings, with those that the reader has.
            pub(super) fn read_over(&self, reader: &mut Reader) -> Self {
                let mut config = self.clone();
                $($(
                    if reader.value(&$variable.row).is_some() {
                        config.$field = reader.read(&$variable);
                    }
                )*)*
                config
            }
        }
    };
}

pub(super) use settings;
