// Which of a server's flows gets a request: always the first, each in turn, by the hash of the key, or the one with most credits. The
// flows of a connection are consecutive, a power of two many.
module load_balancer #(
    parameter int FLOWS = 4,
    parameter int FLOW_BITS = 2
) (
    input logic clk,
    input logic rst,
    input logic [1:0] balance,
    input logic [7:0] first,
    // Flows less one.
    input logic [7:0] mask,
    input logic [31:0] key_hash,
    input logic [16*FLOWS-1:0] levels,
    // A request has been given to the flow.
    input logic used,
    output logic [FLOW_BITS-1:0] flow
);
  logic [7:0] turn_q;
  logic [FLOW_BITS-1:0] least_loaded;
  logic [15:0] most;
  logic [7:0] chosen;

  always_comb begin
    least_loaded = first[FLOW_BITS-1:0];
    most = '0;
    for (int i = 0; i < FLOWS; i++) begin
      if ((8'(i) & ~mask) == (first & ~mask) && levels[16*i+:16] > most) begin
        most = levels[16*i+:16];
        least_loaded = FLOW_BITS'(i);
      end
    end
    case (balance)
      nic_pkg::BALANCE_ROUND_ROBIN: chosen = (first & ~mask) | (turn_q & mask);
      nic_pkg::BALANCE_KEY: chosen = (first & ~mask) | (key_hash[7:0] & mask);
      nic_pkg::BALANCE_LEAST_LOADED: chosen = 8'(least_loaded);
      default: chosen = first;
    endcase
    flow = chosen[FLOW_BITS-1:0];
  end

  always_ff @(posedge clk) begin
    if (rst) turn_q <= '0;
    else if (used) turn_q <= turn_q + 8'd1;
  end

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, chosen, key_hash};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
