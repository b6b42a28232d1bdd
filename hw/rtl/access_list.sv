// The access list: a request that a rule matches is denied. A rule looks at a field of 4 bytes, or at the hash of the key, and at the
// method. It sees the first 32 bytes of the request; what the request does not have reads as zero.
module access_list #(
    parameter int RULES = 8
) (
    input logic [32*RULES-1:0] rule_control,
    input logic [32*RULES-1:0] rule_low,
    input logic [32*RULES-1:0] rule_high,
    input logic [15:0] method,
    input logic [255:0] payload,
    input logic [31:0] key_hash,
    output logic denied
);
  logic [RULES-1:0] matched;

  always_comb begin
    for (int i = 0; i < RULES; i++) begin
      logic [31:0] field;
      logic [31:0] low;
      logic [31:0] high;
      logic in_range;
      logic in_hash;
      logic of_method;
      // The last field begins at byte 28; a greater offset reads that one.
      field = payload[{(rule_control[32*i+3+:5] > 5'd28) ? 5'd28 : rule_control[32*i+3+:5], 3'd0}+:32];
      low = rule_low[32*i+:32];
      high = rule_high[32*i+:32];
      in_range = field >= low && field <= high;
      in_hash = (key_hash & high) == low;
      of_method = rule_control[32*i+2] || rule_control[32*i+16+:16] == method;
      matched[i] = rule_control[32*i] && of_method && (rule_control[32*i+1] ? in_hash : in_range);
    end
  end
  assign denied = |matched;

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, rule_control};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
