// The hash of a request's key: the 8 bytes at an offset in its first 32. An xor-shift-multiply, as its low bits choose flows.
module key_hash (
    input logic [4:0] offset,
    input logic [255:0] payload,
    output logic [31:0] hash
);
  logic [63:0] key;
  logic [31:0] folded;
  logic [31:0] mixed;
  // The last key begins at byte 24; a greater offset reads that one.
  assign key = payload[{(offset > 5'd24) ? 5'd24 : offset, 3'd0}+:64];
  assign folded = key[31:0] ^ {key[50:32], key[63:51]};
  assign mixed = (folded ^ (folded >> 15)) * 32'h85eb_ca6b;
  assign hash = mixed ^ (mixed >> 13);
endmodule
