#include "engine/tokenizer/tokenizer_json_parts.h"

#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/pre_tokenizer.h"

namespace tokenbutler {
namespace {

using SpacePrefix = TokenizerSpec::SpacePrefix;

constexpr std::string_view kSpaceMark = "\u2581";
constexpr int kMaxDepth = 8;

// A part: its type, and the field to read the rest from.
struct Part {
  std::string_view type;
  JsonField field;
};

absl::Status NotSupported(const Part& part) {
  return UnimplementedError("{}.type is '{}', which is not supported here", part.field.path(),
                            part.type);
}

// Appends `field`, or what it holds if it is a Sequence, to `parts`. `list_key` is the name of a
// Sequence's list.
absl::Status Flatten(const JsonField& field, std::string_view list_key, int depth,
                     std::vector<Part>* parts) {
  ASSIGN_OR_RETURN(const std::string_view type, field.GetString("type"));
  if (type != "Sequence") {
    parts->push_back({.type = type, .field = field});
    return absl::OkStatus();
  }
  if (depth >= kMaxDepth) {
    return InvalidArgumentError("{} is nested deeper than {} levels", field.path(), kMaxDepth);
  }
  ASSIGN_OR_RETURN(const JsonField list, field.Get(list_key));
  RETURN_IF_ERROR(list.CheckArray());
  for (size_t i = 0; i < list.size(); ++i) {
    RETURN_IF_ERROR(Flatten(list.At(i), list_key, depth + 1, parts));
  }
  return absl::OkStatus();
}

// The parts of document[key]; none when it is null.
absl::StatusOr<std::vector<Part>> ReadParts(const JsonField& document, std::string_view key,
                                            std::string_view list_key) {
  std::vector<Part> parts;
  if (const std::optional<JsonField> field = document.Find(key)) {
    RETURN_IF_ERROR(Flatten(*field, list_key, 0, &parts));
  }
  return parts;
}

absl::Status CheckString(const JsonField& field, std::string_view key, std::string_view wanted) {
  ASSIGN_OR_RETURN(const std::string_view text, field.GetString(key));
  if (text == wanted) return absl::OkStatus();
  return UnimplementedError("{}.{} is '{}', only '{}' is supported", field.path(), key, text,
                            wanted);
}

// A Replace of the string `from` by the string `to`.
absl::Status CheckReplace(const JsonField& field, std::string_view from, std::string_view to) {
  ASSIGN_OR_RETURN(const JsonField pattern, field.Get("pattern"));
  RETURN_IF_ERROR(CheckString(pattern, "String", from));
  return CheckString(field, "content", to);
}

// What the normaliser does with spaces.
struct SpaceNormalizer {
  bool replaces = false;
  bool prepends = false;
};

absl::StatusOr<SpaceNormalizer> ReadNormalizer(const JsonField& document, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const std::vector<Part> parts, ReadParts(document, "normalizer", "normalizers"));
  SpaceNormalizer spaces;
  for (const Part& part : parts) {
    if (part.type == "NFC") {
      if (spaces.replaces || spaces.prepends) return NotSupported(part);
      spec->nfc = true;
    } else if (part.type == "Prepend") {
      RETURN_IF_ERROR(CheckString(part.field, "prepend", kSpaceMark));
      if (spaces.prepends) return NotSupported(part);
      spaces.prepends = true;
    } else if (part.type == "Replace") {
      RETURN_IF_ERROR(CheckReplace(part.field, " ", kSpaceMark));
      spaces.replaces = true;
    } else {
      return NotSupported(part);
    }
  }
  return spaces;
}

absl::Status ReadByteLevel(const JsonField& field, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, field.GetBool("add_prefix_space", true));
  if (add_prefix_space) {
    return UnimplementedError("{}.add_prefix_space is true, only false is supported", field.path());
  }
  ASSIGN_OR_RETURN(const bool use_regex, field.GetBool("use_regex", true));
  if (use_regex) spec->pre_tokenizer_steps.push_back(PreTokenizerStep::kGpt2);
  spec->kind = TokenizerSpec::Kind::kByteLevelBpe;
  return absl::OkStatus();
}

absl::Status ReadSplit(const JsonField& field, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const std::string_view behavior, field.GetString("behavior"));
  ASSIGN_OR_RETURN(const bool invert, field.GetBool("invert", false));
  // The known patterns match all of a text, so that removing what lies between is the same.
  if (!(behavior == "Isolated" && !invert) && !(behavior == "Removed" && invert)) {
    return UnimplementedError("{}.behavior is '{}' with invert {}, only 'Isolated' is supported",
                              field.path(), behavior, invert);
  }
  ASSIGN_OR_RETURN(const JsonField pattern, field.Get("pattern"));
  ASSIGN_OR_RETURN(const std::string_view regex, pattern.GetString("Regex"));
  absl::StatusOr<PreTokenizerStep> step = FindPreTokenizerStep(regex);
  if (!step.ok()) return Annotate(step.status(), pattern.path());
  spec->pre_tokenizer_steps.push_back(*step);
  return absl::OkStatus();
}

absl::Status ReadMetaspace(const JsonField& field, TokenizerSpec* spec) {
  RETURN_IF_ERROR(CheckString(field, "replacement", kSpaceMark));
  ASSIGN_OR_RETURN(const bool split, field.GetBool("split", true));
  if (split) return UnimplementedError("{}.split is true, only false is supported", field.path());
  ASSIGN_OR_RETURN(const std::string_view scheme, field.GetString("prepend_scheme"));
  spec->kind = TokenizerSpec::Kind::kSentencePieceBpe;
  spec->add_space_prefix = scheme != "never";
  spec->space_prefix =
      scheme == "first" ? SpacePrefix::kMetaspaceFirst : SpacePrefix::kMetaspaceAlways;
  if (scheme == "first" || scheme == "always" || scheme == "never") return absl::OkStatus();
  return InvalidArgumentError("{}.prepend_scheme is '{}', must be first, always or never",
                              field.path(), scheme);
}

}  // namespace

absl::Status ReadTextSteps(const JsonField& document, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const SpaceNormalizer spaces, ReadNormalizer(document, spec));
  ASSIGN_OR_RETURN(const std::vector<Part> parts,
                   ReadParts(document, "pre_tokenizer", "pretokenizers"));
  bool complete = false;  // ByteLevel or Metaspace was there: nothing may follow
  for (const Part& part : parts) {
    if (complete) return NotSupported(part);
    if (part.type == "ByteLevel") {
      RETURN_IF_ERROR(ReadByteLevel(part.field, spec));
      complete = true;
    } else if (part.type == "Split") {
      RETURN_IF_ERROR(ReadSplit(part.field, spec));
    } else if (part.type == "Digits") {
      ASSIGN_OR_RETURN(const bool individual, part.field.GetBool("individual_digits", false));
      if (!individual) {
        return UnimplementedError("{}.individual_digits is false, only true is supported",
                                  part.field.path());
      }
      spec->pre_tokenizer_steps.push_back(PreTokenizerStep::kDigits);
    } else if (part.type == "Metaspace") {
      if (parts.size() > 1) return NotSupported(part);
      RETURN_IF_ERROR(ReadMetaspace(part.field, spec));
      complete = true;
    } else {
      return NotSupported(part);
    }
  }
  if (complete) {
    if (!spaces.replaces && !spaces.prepends) return absl::OkStatus();
    return UnimplementedError(
        "normalizer changes spaces, which is not supported with this "
        "pre_tokenizer");
  }
  if (!spaces.replaces || !parts.empty()) {
    return UnimplementedError(
        "pre_tokenizer has neither ByteLevel nor Metaspace, and normalizer does not replace spaces "
        "by '{}': this kind of tokenizer is not supported",
        kSpaceMark);
  }
  spec->kind = TokenizerSpec::Kind::kSentencePieceBpe;
  spec->space_prefix = SpacePrefix::kEverySection;
  spec->add_space_prefix = spaces.prepends;
  return absl::OkStatus();
}

absl::Status ReadDecoder(const JsonField& document, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const std::vector<Part> parts, ReadParts(document, "decoder", "decoders"));
  if (spec->kind == TokenizerSpec::Kind::kByteLevelBpe) {
    if (parts.size() == 1 && parts[0].type == "ByteLevel") return absl::OkStatus();
    return UnimplementedError("decoder is not ByteLevel, as a ByteLevel pre_tokenizer needs");
  }
  const bool strips = parts.size() == 4 && parts[3].type == "Strip";
  if (parts.size() != (strips ? 4 : 3) || parts[0].type != "Replace" ||
      parts[1].type != "ByteFallback" || parts[2].type != "Fuse") {
    return UnimplementedError(
        "decoder is not a Sequence of Replace, ByteFallback, Fuse and perhaps Strip");
  }
  RETURN_IF_ERROR(CheckReplace(parts[0].field, kSpaceMark, " "));
  spec->strips_leading_space = strips;
  if (!strips) return absl::OkStatus();
  const JsonField& strip = parts[3].field;
  RETURN_IF_ERROR(CheckString(strip, "content", " "));
  for (const auto& [key, wanted] : {std::pair("start", 1), std::pair("stop", 0)}) {
    ASSIGN_OR_RETURN(const JsonField count_field, strip.Get(key));
    ASSIGN_OR_RETURN(const int32_t count, count_field.AsId(1 << 30));
    if (count != wanted) {
      return UnimplementedError("{} is {}, only {} is supported", count_field.path(), count,
                                wanted);
    }
  }
  return absl::OkStatus();
}

namespace {

// Appends the ids of TemplateProcessing's special token `name`.
absl::Status AppendTemplateToken(const JsonField& template_field, std::string_view name,
                                 int32_t num_tokens, std::vector<int32_t>* ids) {
  ASSIGN_OR_RETURN(const JsonField special_tokens, template_field.Get("special_tokens"));
  ASSIGN_OR_RETURN(const JsonField token, special_tokens.Get(name));
  ASSIGN_OR_RETURN(const JsonField list, token.Get("ids"));
  RETURN_IF_ERROR(list.CheckArray());
  for (size_t i = 0; i < list.size(); ++i) {
    ASSIGN_OR_RETURN(const int32_t id, list.At(i).AsId(num_tokens));
    ids->push_back(id);
  }
  return absl::OkStatus();
}

absl::Status ReadTemplate(const JsonField& field, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const JsonField single, field.Get("single"));
  RETURN_IF_ERROR(single.CheckArray());
  const int32_t num_tokens = static_cast<int32_t>(spec->tokens.size());
  bool after = false;  // the text itself was there
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonField piece = single.At(i);
    if (piece.Find("Sequence").has_value()) {
      if (after) {
        return UnimplementedError("{} repeats the text, which is not supported", piece.path());
      }
      after = true;
      continue;
    }
    ASSIGN_OR_RETURN(const JsonField token, piece.Get("SpecialToken"));
    ASSIGN_OR_RETURN(const std::string_view name, token.GetString("id"));
    RETURN_IF_ERROR(AppendTemplateToken(field, name, num_tokens,
                                        after ? &*spec->suffix_ids : &*spec->prefix_ids));
  }
  if (after) return absl::OkStatus();
  return InvalidArgumentError("{} has no place for the text", single.path());
}

}  // namespace

absl::Status ReadPostProcessor(const JsonField& document, TokenizerSpec* spec) {
  ASSIGN_OR_RETURN(const std::vector<Part> parts,
                   ReadParts(document, "post_processor", "processors"));
  spec->prefix_ids.emplace();
  spec->suffix_ids.emplace();
  bool has_template = false;
  for (const Part& part : parts) {
    if (part.type == "ByteLevel") continue;  // moves offsets, not ids
    if (part.type != "TemplateProcessing" || has_template) return NotSupported(part);
    RETURN_IF_ERROR(ReadTemplate(part.field, spec));
    has_template = true;
  }
  return absl::OkStatus();
}

}  // namespace tokenbutler
