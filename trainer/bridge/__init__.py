"""The backend that trains with Megatron-Bridge: the same plan and the same records as with NeMo 2."""
