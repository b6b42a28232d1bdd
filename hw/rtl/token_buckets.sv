// Token buckets: each gets a token every so many ticks, up to its burst; whoever spends one names the bucket. A period of zero means
// that the bucket does not limit.
module token_buckets #(
    parameter int BUCKETS = 8,
    parameter int BUCKET_BITS = 3
) (
    input logic clk,
    input logic rst,
    // Ticks of 64 ns; it may jump.
    input logic [31:0] now,
    input logic [32*BUCKETS-1:0] period,
    input logic [32*BUCKETS-1:0] burst,
    input logic [BUCKET_BITS-1:0] bucket,
    output logic has_token,
    input logic spend
);
  logic [15:0] tokens_q[BUCKETS];
  logic [31:0] filled_q[BUCKETS];
  // One bucket is filled in a cycle.
  logic [BUCKET_BITS-1:0] turn_q;
  logic [31:0] waited;
  logic [15:0] burst_now;
  logic fill;
  logic spend_now;

  assign has_token = period[32*bucket+:32] == 32'd0 || tokens_q[bucket] != 16'd0;
  assign waited = now - filled_q[turn_q];
  assign burst_now = burst[32*turn_q+:16];
  assign fill = period[32*turn_q+:32] != 32'd0 && waited >= period[32*turn_q+:32];
  assign spend_now = spend && tokens_q[bucket] != 16'd0;

  always_ff @(posedge clk) begin
    if (rst) begin
      turn_q <= '0;
      for (int i = 0; i < BUCKETS; i++) begin
        tokens_q[i] <= '0;
        filled_q[i] <= '0;
      end
    end else begin
      turn_q <= turn_q + 1'b1;
      if (fill || spend_now) begin
        for (int i = 0; i < BUCKETS; i++) begin
          if (fill && turn_q == BUCKET_BITS'(i)) begin
            // What a full bucket does not get is lost: its time begins anew.
            filled_q[i] <= (tokens_q[i] >= burst_now) ? now : filled_q[i] + period[32*i+:32];
          end
          tokens_q[i] <= tokens_q[i]
              + 16'(fill && turn_q == BUCKET_BITS'(i) && tokens_q[i] < burst_now)
              - 16'(spend_now && bucket == BUCKET_BITS'(i));
        end
      end
    end
  end

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, burst};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
