package io.github.gatehouse;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.zip.Deflater;
import java.util.zip.GZIPOutputStream;

/** The encodings of bodies. */
final class Encodings {
  private static final Pattern COMPRESSED = Pattern.compile("(image|video|audio)/.*|font/woff2?"
      + "|application/(zip|gzip|x-gzip|zstd|x-7z-compressed|x-bzip2|x-xz|vnd[.]rar)");
  private static final Pattern UNCOMPRESSED =
      Pattern.compile("image/(svg[+]xml|bmp|x-ms-bmp|x-icon|vnd[.]microsoft[.]icon|tiff)|audio/wave?");
  private static final Map<String, Coder> CODERS = coders();

  private Encodings() {}

  private interface Coder {
    byte[] encode(byte[] body) throws IOException;
  }

  private static Map<String, Coder> coders() {
    Map<String, Coder> coders = new LinkedHashMap<>();
    coders.put("body.gzip", Encodings::gzip);
    try { // both libraries are optional
      if (com.aayushatharva.brotli4j.Brotli4jLoader.isAvailable()) {
        coders.put("body.br", body -> com.aayushatharva.brotli4j.encoder.Encoder.compress(body,
            new com.aayushatharva.brotli4j.encoder.Encoder.Parameters().setQuality(9)));
      }
    } catch (LinkageError e) {
      // without br
    }
    try {
      if (com.github.luben.zstd.util.Native.isLoaded() || com.github.luben.zstd.Zstd.maxCompressionLevel() > 0) {
        coders.put("body.zstd", body -> com.github.luben.zstd.Zstd.compress(body, 19));
      }
    } catch (LinkageError e) {
      // without zstd
    }
    return coders;
  }

  private static byte[] gzip(byte[] body) throws IOException {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    try (GZIPOutputStream zip = new GZIPOutputStream(out) {
      {
        def.setLevel(Deflater.BEST_COMPRESSION);
      }
    }) {
      zip.write(body);
    }
    return out.toByteArray();
  }

  /** Returns the fields of all encodings that are smaller than the body. */
  static Map<String, byte[]> of(byte[] body, String contentType) {
    String media = contentType.split(";", -1)[0].strip().toLowerCase(Locale.ROOT);
    Map<String, byte[]> encoded = new LinkedHashMap<>();
    if (COMPRESSED.matcher(media).matches() && !UNCOMPRESSED.matcher(media).matches()) {
      return encoded;
    }
    CODERS.forEach((field, coder) -> {
      try {
        byte[] data = coder.encode(body);
        if (data.length < body.length) {
          encoded.put(field, data);
        }
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    });
    return encoded;
  }
}
