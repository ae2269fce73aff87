#include "engine/weights/dequantise.h"

#include <bit>
#include <cstring>
#include <type_traits>

// Block layouts: the structs of ggml-common.h, described in each function. d and m are IEEE half
// precision; `qs` hold the low bits of two or four elements a byte, `qh` the high bits.

namespace tokenbutler {
namespace {

constexpr int kMaxBlock = 256;
// Elements of the one-element types that are converted at a time.
constexpr int kPlainRun = 256;

float HalfAt(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof(half));
  return HalfToFloat(half);
}

float FloatAt(const uint8_t* p) {
  float x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

uint32_t Uint32At(const uint8_t* p) {
  uint32_t x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

// d | 16 bytes: elements 0..15 in the low nibbles, 16..31 in the high ones. x = d * (q - 8)
void DecodeQ4_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  const uint8_t* qs = block + 2;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((qs[i] & 0x0f) - 8);
    out[i + 16] = d * static_cast<float>((qs[i] >> 4) - 8);
  }
}

// d | m | 16 bytes. x = d * q + m
void DecodeQ4_1(const uint8_t* block, float* out) {
  const float d = HalfAt(block), m = HalfAt(block + 2);
  const uint8_t* qs = block + 4;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(qs[i] & 0x0f) + m;
    out[i + 16] = d * static_cast<float>(qs[i] >> 4) + m;
  }
}

// d | fifth bits of elements 0..31 | 16 bytes. x = d * (q - 16)
void DecodeQ5_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  const uint32_t qh = Uint32At(block + 2);
  const uint8_t* qs = block + 6;
  for (int i = 0; i < 16; ++i) {
    const int low = (qs[i] & 0x0f) | static_cast<int>(((qh >> i) & 1) << 4);
    const int high = (qs[i] >> 4) | static_cast<int>(((qh >> (i + 16)) & 1) << 4);
    out[i] = d * static_cast<float>(low - 16);
    out[i + 16] = d * static_cast<float>(high - 16);
  }
}

// d | m | fifth bits | 16 bytes. x = d * q + m
void DecodeQ5_1(const uint8_t* block, float* out) {
  const float d = HalfAt(block), m = HalfAt(block + 2);
  const uint32_t qh = Uint32At(block + 4);
  const uint8_t* qs = block + 8;
  for (int i = 0; i < 16; ++i) {
    const int low = (qs[i] & 0x0f) | static_cast<int>(((qh >> i) & 1) << 4);
    const int high = (qs[i] >> 4) | static_cast<int>(((qh >> (i + 16)) & 1) << 4);
    out[i] = d * static_cast<float>(low) + m;
    out[i + 16] = d * static_cast<float>(high) + m;
  }
}

// d | 32 signed bytes. x = d * q
void DecodeQ8_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int i = 0; i < 32; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
  }
}

// 16 x (scale, min) nibbles | 64 bytes of 2-bit elements | d | dmin.
// x = (d * scale) * q - (dmin * min), a scale per 16 elements
void DecodeQ2_K(const uint8_t* block, float* out) {
  const uint8_t* scales = block;
  const uint8_t* qs = block + 16;
  const float d = HalfAt(block + 80), dmin = HalfAt(block + 82);
  for (int group = 0; group < 16; ++group) {
    const float dl = d * static_cast<float>(scales[group] & 0x0f);
    const float ml = dmin * static_cast<float>(scales[group] >> 4);
    // 32 bytes carry 128 elements: bits 0-1 the first 32, bits 2-3 the next, and so on.
    const uint8_t* q = qs + group / 8 * 32 + group % 2 * 16;
    const int shift = group % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) {
      out[group * 16 + i] = dl * static_cast<float>((q[i] >> shift) & 3) - ml;
    }
  }
}

// 32 bytes of third bits | 64 bytes of 2-bit elements | 12 bytes: 16 scales of 6 bits | d.
// x = (d * (scale - 32)) * (q - (third bit ? 0 : 4))
void DecodeQ3_K(const uint8_t* block, float* out) {
  const uint8_t* hmask = block;
  const uint8_t* qs = block + 32;
  const uint8_t* packed = block + 96;
  const float d = HalfAt(block + 108);
  for (int group = 0; group < 16; ++group) {
    const int low = group < 8 ? packed[group] & 0x0f : packed[group - 8] >> 4;
    const int high = (packed[8 + group % 4] >> (group / 4 * 2)) & 3;
    const float dl = d * static_cast<float>((low | (high << 4)) - 32);
    const uint8_t* q = qs + group / 8 * 32 + group % 2 * 16;
    const uint8_t* h = hmask + group % 2 * 16;
    const int shift = group % 8 / 2 * 2;
    const int mask_bit = group / 2;
    for (int i = 0; i < 16; ++i) {
      const int third = (h[i] >> mask_bit) & 1;
      out[group * 16 + i] = dl * static_cast<float>(((q[i] >> shift) & 3) - (third ? 0 : 4));
    }
  }
}

// The 6-bit scale and min of 32-element group `j` of a Q4_K or Q5_K block, from 12 packed bytes.
void ScaleAndMin(int j, const uint8_t* packed, float* scale, float* min) {
  if (j < 4) {
    *scale = static_cast<float>(packed[j] & 0x3f);
    *min = static_cast<float>(packed[j + 4] & 0x3f);
  } else {
    *scale = static_cast<float>((packed[j + 4] & 0x0f) | ((packed[j - 4] >> 6) << 4));
    *min = static_cast<float>((packed[j + 4] >> 4) | ((packed[j] >> 6) << 4));
  }
}

// d | dmin | 12 bytes of scales and mins | 128 bytes. x = (d * scale) * q - (dmin * min)
void DecodeQ4_K(const uint8_t* block, float* out) {
  const float d = HalfAt(block), dmin = HalfAt(block + 2);
  const uint8_t* qs = block + 16;
  for (int j = 0; j < 8; ++j) {
    float scale, min;
    ScaleAndMin(j, block + 4, &scale, &min);
    const float dl = d * scale, ml = dmin * min;
    // 32 bytes carry 64 elements: low nibbles the first 32.
    const uint8_t* q = qs + j / 2 * 32;
    const int shift = j % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      out[j * 32 + i] = dl * static_cast<float>((q[i] >> shift) & 0x0f) - ml;
    }
  }
}

// d | dmin | 12 bytes of scales and mins | 32 bytes of fifth bits | 128 bytes
void DecodeQ5_K(const uint8_t* block, float* out) {
  const float d = HalfAt(block), dmin = HalfAt(block + 2);
  const uint8_t* qh = block + 16;
  const uint8_t* qs = block + 48;
  for (int j = 0; j < 8; ++j) {
    float scale, min;
    ScaleAndMin(j, block + 4, &scale, &min);
    const float dl = d * scale, ml = dmin * min;
    const uint8_t* q = qs + j / 2 * 32;
    const int shift = j % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int value = ((q[i] >> shift) & 0x0f) | (((qh[i] >> j) & 1) << 4);
      out[j * 32 + i] = dl * static_cast<float>(value) - ml;
    }
  }
}

// 128 bytes of low nibbles | 64 bytes of high bits | 16 signed scales | d.
// x = (d * scale) * (q - 32), a scale per 16 elements
void DecodeQ6_K(const uint8_t* block, float* out) {
  const uint8_t* ql = block;
  const uint8_t* qh = block + 128;
  const uint8_t* scales = block + 192;
  const float d = HalfAt(block + 208);
  for (int j = 0; j < 8; ++j) {
    // 64 low bytes and 32 high bytes carry 128 elements, in four runs of 32.
    const uint8_t* low = ql + j / 4 * 64 + j % 2 * 32;
    const uint8_t* high = qh + j / 4 * 32;
    const int low_shift = j % 4 / 2 * 4, high_shift = j % 4 * 2;
    for (int i = 0; i < 32; ++i) {
      const float dl = d * static_cast<float>(static_cast<int8_t>(scales[j * 2 + i / 16]));
      const int q = ((low[i] >> low_shift) & 0x0f) | (((high[i] >> high_shift) & 3) << 4);
      out[j * 32 + i] = dl * static_cast<float>(q - 32);
    }
  }
}

// d as float32 | 256 signed bytes | 16 sums that only dot products use. x = d * q
void DecodeQ8_K(const uint8_t* block, float* out) {
  const float d = FloatAt(block);
  for (int i = 0; i < 256; ++i) {
    out[i] = d * static_cast<float>(static_cast<int8_t>(block[4 + i]));
  }
}

// HalfToFloat without branches, so that whole models of halves are converted by vectors: shifting
// the exponent's bias in by a multiplication keeps subnormals exact.
float HalfBitsToFloat(uint16_t half) {
  const uint32_t magnitude = uint32_t{half & 0x7fffu} << 13;
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t unsigned_bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite;
  return std::bit_cast<float>(unsigned_bits | (uint32_t{half & 0x8000u} << 16));
}

void DecodeF16(const uint8_t* stored, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, stored + 2 * i, sizeof(half));
    out[i] = HalfBitsToFloat(half);
  }
}

void DecodeBF16(const uint8_t* stored, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, stored + 2 * i, sizeof(bits));
    out[i] = ToFloat(BF16{bits});
  }
}

void Store(const float* values, int64_t n, BF16* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = ToBF16(values[i]);
}

// One block after the other; float32 results are decoded in place.
template <int kElements, int kBytes, void (*kDecode)(const uint8_t*, float*), typename Out>
void DecodeBlocks(const uint8_t* stored, int64_t num_elements, Out* out) {
  for (int64_t i = 0; i < num_elements; i += kElements, stored += kBytes) {
    if constexpr (std::is_same_v<Out, float>) {
      kDecode(stored, out + i);
    } else {
      float values[kMaxBlock];
      kDecode(stored, values);
      Store(values, kElements, out + i);
    }
  }
}

// F16 and BF16, whose "blocks" are single elements: by runs.
template <void (*kDecode)(const uint8_t*, int64_t, float*), typename Out>
void DecodeHalves(const uint8_t* stored, int64_t num_elements, Out* out) {
  if constexpr (std::is_same_v<Out, float>) {
    kDecode(stored, num_elements, out);
  } else {
    float values[kPlainRun];
    for (int64_t i = 0; i < num_elements; i += kPlainRun) {
      const int64_t n = num_elements - i < kPlainRun ? num_elements - i : kPlainRun;
      kDecode(stored + 2 * i, n, values);
      Store(values, n, out + i);
    }
  }
}

void CopyF32(const uint8_t* stored, int64_t n, float* out) {
  std::memcpy(out, stored, static_cast<size_t>(n) * sizeof(float));
}

void CopyF32(const uint8_t* stored, int64_t n, BF16* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = ToBF16(FloatAt(stored + 4 * i));
}

template <typename Out>
void DequantiseTo(GgmlType type, const std::byte* stored_bytes, int64_t n, Out* out) {
  const auto* stored = reinterpret_cast<const uint8_t*>(stored_bytes);
  switch (type) {
    case GgmlType::kF32:
      return CopyF32(stored, n, out);
    case GgmlType::kF16:
      return DecodeHalves<DecodeF16>(stored, n, out);
    case GgmlType::kBF16:
      return DecodeHalves<DecodeBF16>(stored, n, out);
    case GgmlType::kQ4_0:
      return DecodeBlocks<32, 18, DecodeQ4_0>(stored, n, out);
    case GgmlType::kQ4_1:
      return DecodeBlocks<32, 20, DecodeQ4_1>(stored, n, out);
    case GgmlType::kQ5_0:
      return DecodeBlocks<32, 22, DecodeQ5_0>(stored, n, out);
    case GgmlType::kQ5_1:
      return DecodeBlocks<32, 24, DecodeQ5_1>(stored, n, out);
    case GgmlType::kQ8_0:
      return DecodeBlocks<32, 34, DecodeQ8_0>(stored, n, out);
    case GgmlType::kQ2_K:
      return DecodeBlocks<256, 84, DecodeQ2_K>(stored, n, out);
    case GgmlType::kQ3_K:
      return DecodeBlocks<256, 110, DecodeQ3_K>(stored, n, out);
    case GgmlType::kQ4_K:
      return DecodeBlocks<256, 144, DecodeQ4_K>(stored, n, out);
    case GgmlType::kQ5_K:
      return DecodeBlocks<256, 176, DecodeQ5_K>(stored, n, out);
    case GgmlType::kQ6_K:
      return DecodeBlocks<256, 210, DecodeQ6_K>(stored, n, out);
    case GgmlType::kQ8_K:
      return DecodeBlocks<256, 292, DecodeQ8_K>(stored, n, out);
  }
}

}  // namespace

void Dequantise(GgmlType type, const std::byte* stored, int64_t num_elements, float* out) {
  DequantiseTo(type, stored, num_elements, out);
}

void Dequantise(GgmlType type, const std::byte* stored, int64_t num_elements, BF16* out) {
  DequantiseTo(type, stored, num_elements, out);
}

}  // namespace tokenbutler
